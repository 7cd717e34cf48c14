#!/usr/bin/env bash
# A tar archive with a file that ends with a hole, such as the image of a disk, is mounted with archivemount and the
# file is copied out of it.
#
# One would guess: the copy is like the file. Its size is right in the mount; libarchive, which archivemount uses,
# knows of holes, and bsdtar, made of the same, has it right.
# What happens: reading stops where the last data ends. `stat` says 1 MiB, and what can be read is half of it; cp
# makes a short file, status 0.
# Seen with archivemount 0.8.7 and libarchive 3.6.2 of Debian 12. Needs root and /dev/fuse.
#
#   stat: 1048576      cat FILE | wc -c: 528384, status 0      bsdtar -xO: 1048576
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs archivemount=0.8.7-1+b1 libarchive-tools=3.6.2-1+deb12u5 libarchive13=3.6.2-1+deb12u5 libfuse2=2.9.9-6+b1
[[ -c /dev/fuse ]] || cannot "it needs /dev/fuse"
truncate -s 1M disk
printf head | dd of=disk conv=notrunc 2>words
printf tail | dd of=disk bs=1 seek=512K conv=notrunc 2>words
tar --sparse --format=gnu -cf archive.tar disk
expect "bsdtar" 1048576 "$(bsdtar -xOf archive.tar | wc -c)"
mkdir mounted
on_exit+=("umount mounted")
archivemount -o readonly archive.tar mounted 2>words || cannot "$(tail -n 1 words)"
expect "size" 1048576 "$(stat -c %s mounted/disk)"
status=0
cat mounted/disk >copy || status=$?
expect "what can be read" "528384, status 0" "$(stat -c %s copy), status $status"
