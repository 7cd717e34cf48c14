#!/usr/bin/env bash
# `unsquashfs -cat` of a symbolic link, such as etc/os-release, which is one in nearly every image.
#
# One would guess: the content of the file that it leads to, as from cat; or "not a regular file".
# What happens: "File System corrupted: directory loop detected", status 2. The image is sound, and there is no
# loop; -follow does not help. (A link with an absolute target fails with other words.) One has to ask for the
# target itself, usr/lib/os-release.
# Seen with squashfs-tools 4.5.1 of Debian 12.
#
#   unsquashfs -cat image etc/os-release: File System corrupted: directory loop detected
#   unsquashfs image: status 0; all files are there
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools=1:4.5.1-1 liblzo2-2=2.10-2
mkdir -p files/etc files/usr/lib
echo ID=words >files/usr/lib/os-release
ln -s ../usr/lib/os-release files/etc/os-release
mksquashfs files image -quiet -no-progress
for option in "" -follow; do
	seen=0
	unsquashfs ${option:+"$option"} -cat image etc/os-release >out 2>words || seen=$?
	expect "status${option:+ with $option}" 2 "$seen"
	expect "words" "File System corrupted: directory loop detected" "$(head -n 1 words)"
done
expect "the target" ID=words "$(unsquashfs -cat image usr/lib/os-release)"
seen=0
unsquashfs -q -n -d out-all image >out 2>words || seen=$?
expect "the whole image" 0 "$seen"
expect "the link in it" ID=words "$(cat out-all/etc/os-release)"
