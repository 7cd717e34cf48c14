#!/usr/bin/env bash
# A layer is made of a root file system whose files go below another directory, or come from below one: tar
# --transform 's,^,rootfs/,' …
#
# One would guess: the names of the files change, and what a symbolic link holds stays, as with mv, cp and
# --strip-components.
# What happens: the targets of symbolic links change too: bin -> usr/bin becomes bin -> rootfs/usr/bin, and ../lib
# becomes rootfs/../lib, so no program below /bin is found. Flag S ('s,^,rootfs/,S') leaves them alone; hard links
# have to change.
# Seen with GNU tar 1.34 of Debian 12.
#
#   bin -> usr/bin:   without flag: rootfs/bin -> rootfs/usr/bin     with S: rootfs/bin -> usr/bin
. "$(dirname "$0")/common.bash" || exit 2
debs tar=1.34+dfsg-1.2+deb12u1
mkdir -p source/usr/bin
ln -s usr/bin source/bin
ln -s ../lib source/usr/bin/lib
links() { # SUBSTITUTION
	tar -c -C source --transform "$1" bin usr | tar -tv | sed -n 's/.* \([^ ]* -> .*\)/\1/p' | sort | paste -sd ' '
}
expect "without flag" "rootfs/bin -> rootfs/usr/bin rootfs/usr/bin/lib -> rootfs/../lib" "$(links 's,^,rootfs/,')"
expect "with S" "rootfs/bin -> usr/bin rootfs/usr/bin/lib -> ../lib" "$(links 's,^,rootfs/,S')"
