#!/usr/bin/env bash
# An image of Btrfs is made of a root file system without mounting it: mkfs.btrfs --rootdir DIRECTORY IMAGE. In it is a
# file with a hole, such as /var/log/lastlog or the disk of a virtual machine.
#
# One would guess: the hole stays one, as with mke2fs -d and mksquashfs. By default a new Btrfs even has the feature
# "no-holes", for which nothing at all is written of a hole.
# What happens: the zeros are written, all of them, so the image needs the whole size of the file.
# Seen with btrfs-progs 6.2 and e2fsprogs 1.47.0 of Debian 12.
#
#   a file of 16 MiB with 4 bytes of data: 16781312 bytes of data in the image, ext4 1024
. "$(dirname "$0")/common.bash" || exit 2
debs btrfs-progs=6.2-1+deb12u2 e2fsprogs=1.47.0-2+b2 libext2fs2=1.47.0-2+b2 libcom-err2=1.47.0-2+b2 \
	libss2=1.47.0-2+b2 liblzo2-2=2.10-2
mkdir directory
truncate -s 16M directory/file
printf 'end\n' >>directory/file
expect "blocks of the file" yes "$([[ $(stat -c %b directory/file) -le 16 ]] && echo yes)"
truncate -s 150M image
mkfs.btrfs -q --rootdir directory image >words 2>&1
btrfs inspect-internal dump-tree -t 5 image >tree
data=0
while read -r bytes; do data=$((data + bytes)); done < <(sed -n 's/.*extent data disk byte [1-9][0-9]* nr //p' tree)
expect "bytes of data in Btrfs" 16781312 "$data"
expect "by 'no-holes'" 1 "$(btrfs inspect-internal dump-super image | grep -c NO_HOLES)"
mke2fs -q -t ext4 -b 1024 -d directory ext4 20M >words 2>&1
blocks=$(debugfs -R 'stat /file' ext4 2>>words | sed -n 's/.*Blockcount: *//p')
expect "bytes of data in ext4" 1024 "$((blocks * 512))"
