#!/usr/bin/env bash
# unsquashfs is to extract one path of an image, which is not in it.
#
# One would guess: a line on standard error and a status other than 0, as tar -x and unzip have.
# What happens: no line of it, status 0, and an empty directory. (-cat of the same path fails: 2.)
# Seen with squashfs-tools 4.5.1 of Debian 12.
#
#   unsquashfs -d out image etc/passwd: 0, out is empty      unsquashfs -cat image etc/passwd: 2
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools=1:4.5.1-1 liblzo2-2=2.10-2
mkdir files
echo x >files/file
mksquashfs files image -quiet -no-progress
seen=0
unsquashfs -n -q -d out image etc/passwd >words 2>errors || seen=$?
expect "status" 0 "$seen"
expect "errors" "" "$(cat errors)"
expect "extracted" "" "$(ls -A out)"
seen=0
unsquashfs -cat image etc/passwd >words 2>errors || seen=$?
expect "status with -cat" 2 "$seen"
