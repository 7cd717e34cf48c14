#!/usr/bin/env bash
# mksquashfs makes an image from a tar archive that has a path twice, as `tar --append` leaves it.
#
# One would guess: the last entry counts, as with every tar that extracts such an archive.
# What happens: the first entry counts; mksquashfs says so and goes on, status 0.
# Seen with squashfs-tools 4.5.1 of Debian 12.
#
#   archive: file (old), file (new).   tar -x: new   mksquashfs -tar: old
#   "file already exists in the tar file, ignoring"
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools=1:4.5.1-1 liblzo2-2=2.10-2
echo old >file
tar -cf archive.tar file
echo new >file
tar --append -f archive.tar file
rm file
seen=0
mksquashfs - image -tar -quiet -no-progress <archive.tar >words 2>&1 || seen=$?
expect "status" 0 "$seen"
expect "words" "file already exists in the tar file, ignoring" "$(cat words)"
expect "in the image" old "$(unsquashfs -cat image file)"
tar -xf archive.tar
expect "with tar" new "$(cat file)"
