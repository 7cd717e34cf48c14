#!/usr/bin/env bash
# A root file system is put together under fakeroot, which remembers owners and modes, by scripts that call a static
# program too, such as busybox or one in Go. That program removes a file that had an owner and a set-user-ID bit;
# later another file is made.
#
# One would guess: the new file belongs to root and has the mode with which it is made. That a static program does not
# see the owners is known, but it only removes a file here.
# What happens: fakeroot knows files by their inode numbers, and did not hear that this one is gone. The next file that
# gets the number, on ext4 the very next one, has the old one's owner, group and mode, set-user-ID included, and so it
# goes into the archive.
# Seen with fakeroot 1.31 and busybox 1.35.0 of Debian 12; it needs a file system that gives numbers again, as ext4.
#
#   chown 5:6 and chmod 4755 of old; busybox rm old; touch new: tar has new as 5/6 -rwsr-xr-x, after rm 0/0 -rw-r--r--
. "$(dirname "$0")/common.bash" || exit 2
debs fakeroot=1.31-1.2 libfakeroot=1.31-1.2 busybox-static=1:1.35.0-4+deb12u1+b1
cat >make <<'END'
mkdir "$1"
cd "$1"
touch old
chown 5:6 old
chmod 4755 old
number=$(stat -c %i old)
$2 old
touch {1..50}
find . -inum "$number" -printf '%P\n' >../same
tar -c --numeric-owner {1..50} >../"$1.tar"
END
made() { # NAME REMOVE: how the archive has the file that got the old one's number
	fakeroot-sysv --lib "$place/root/usr/lib/$(uname -m)-linux-gnu/libfakeroot/libfakeroot-sysv.so" \
		--faked "$place/root/usr/bin/faked-sysv" -- bash make "$1" "$2"
	[[ -s same ]] || cannot "this file system does not give inode numbers again"
	tar -tv --numeric-owner -f "$1.tar" "$(cat same)" | cut -d ' ' -f 1,2
}
expect "removed by rm" "-rw-r--r-- 0/0" "$(made one rm)"
expect "removed by a static program" "-rwsr-xr-x 5/6" "$(made two "$place/root/bin/busybox rm")"
