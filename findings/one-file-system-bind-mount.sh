#!/usr/bin/env bash
# A root file system is packed, copied or searched without what is mounted in it: tar --one-file-system, cp -x, find
# -xdev, du -x, mksquashfs -one-file-system. A directory of the host is bind-mounted there: a volume.
#
# One would guess: they stop at it. It is a mount point; findmnt and /proc/self/mountinfo have it.
# What happens: they go in, as if it were not there, where it is of the same disk. They compare the numbers of devices
# (st_dev), and those of a bind mount are the disk's. `rm -r --one-file-system` empties the host's directory, and only
# then fails on the mount point.
# Seen with coreutils 9.1, tar 1.34, findutils 4.9.0 and squashfs-tools 4.5.1 of Debian 12. Needs root.
#
#   tree with file and a bind mount with data:   tar, cp, find, mksquashfs: data is there     rm: data is gone
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs coreutils=9.1-1 tar=1.34+dfsg-1.2+deb12u1 findutils=4.9.0-4 squashfs-tools=1:4.5.1-1 liblzo2-2=2.10-2
mkdir -p host tree/volume
echo precious >host/data
echo >tree/file
mount --bind host tree/volume
on_exit+=("umount tree/volume")
mountpoint -q tree/volume || cannot "mountpoint does not see it"
names() { sed 's,/$,,' | grep -o 'data' | sort -u; }
expect "find" data "$(find tree -xdev | names)"
expect "tar" data "$(tar --one-file-system -cf - tree | tar -t | names)"
cp -ax tree copy
expect "cp" data "$(find copy | names)"
mksquashfs tree image -one-file-system -quiet -no-progress >words
expect "mksquashfs" data "$(unsquashfs -l image | names)"
status=0
rm -r --one-file-system tree 2>words || status=$?
expect "rm" "1, Device or resource busy" "$status, $(tail -n 1 words | sed 's/.*: //')"
expect "the host's directory" "" "$(ls host)"
