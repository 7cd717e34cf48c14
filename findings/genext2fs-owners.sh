#!/usr/bin/env bash
# genext2fs makes an image of ext2 of a directory, without being root: genext2fs -d DIRECTORY -b BLOCKS IMAGE. Files
# have owners above 65535, as those of containers of users (/etc/subuid begins with 100000) and of directory services.
#
# One would guess: the owner is kept; ext2 has had 32 bits for it for twenty years, and mke2fs -d keeps it. Or an error.
# What happens: the upper half is dropped without a word. 100000 becomes 34464, and 65536 and 131072 become 0, root.
# Seen with genext2fs 1.5.0 and e2fsprogs 1.47.0 of Debian 12. Needs root.
#
#   100000:131072: genext2fs 34464:0, mke2fs 100000:131072
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs genext2fs=1.5.0-3 libarchive13=3.6.2-1+deb12u5 e2fsprogs=1.47.0-2+b2 libext2fs2=1.47.0-2+b2 \
	libcom-err2=1.47.0-2+b2 libss2=1.47.0-2+b2
mkdir directory
echo data >directory/file
chown 100000:131072 directory/file
genext2fs -d directory -b 1024 ext2 2>words
mke2fs -q -d directory ext4 4M >words 2>&1
owner() { debugfs -R 'stat /file' "$1" 2>>words | sed -n 's/^User: *\([0-9]*\) *Group: *\([0-9]*\).*/\1:\2/p'; }
expect genext2fs 34464:0 "$(owner ext2)"
expect mke2fs 100000:131072 "$(owner ext4)"
