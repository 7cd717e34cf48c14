#!/usr/bin/env bash
# An ext4 image with a file that a group may read (640), mounted with fuse2fs, which engines do without root. The user
# has that group among the supplementary ones (id -G), as is usual.
#
# One would guess: the user can read it, as on ext4 that the kernel mounts and in a plain directory.
# What happens: "Permission denied". fuse2fs judges by the user and the process's first group alone; FUSE does
# not tell it the others. Even with default_permissions, which has the kernel judge, it judges again.
# `newgrp` or `sg` makes the group the first one, and then it can be read.
# Seen with fuse2fs 1.47.0 of Debian 12. Needs root and /dev/fuse.
#
#   file 640, group 2000: in a directory: 100, 2000: read     fuse2fs: 100, 2000: Permission denied     2000: read
. "$(dirname "$0")/common.bash" || exit 2
root_only
[[ -e /dev/fuse ]] || cannot "it needs /dev/fuse"
debs fuse2fs=1.47.0-2+b2 libfuse2=2.9.9-6+b1 e2fsprogs=1.47.0-2+b2 libext2fs2=1.47.0-2+b2 libcom-err2=1.47.0-2+b2
chmod 755 .
mkdir plain mount
on_exit+=("umount --lazy '$place/mount' 2>/dev/null")
file() { # DIRECTORY: makes the file in it
	echo content >"$1/file"
	chgrp 2000 "$1/file"
	chmod 640 "$1/file"
}
read_by() { # DIRECTORY GROUP[,GROUP…]: somebody reads it who has these groups, the first one before all
	setpriv --reuid=65534 --regid="${2%%,*}" --groups="$2" cat "$1/file" 2>&1 | sed 's/.*: //'
}
file plain
expect "directory: 100, 2000" content "$(read_by plain 100,2000)"
truncate --size=20M image
mke2fs -q -t ext4 image
for options in allow_other allow_other,default_permissions; do
	fuse2fs -o "$options" image mount
	file mount
	expect "$options: 100, 2000" "Permission denied" "$(read_by mount 100,2000)"
	expect "$options: 2000" content "$(read_by mount 2000)"
	umount mount
	while mountpoint -q mount; do sleep 0.1; done
done
