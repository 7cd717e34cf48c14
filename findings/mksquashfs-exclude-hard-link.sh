#!/usr/bin/env bash
# mksquashfs leaves a file out (-e) that has a second name, a hard link.
#
# One would guess: only the name that was given is left out; the file stays under its other name.
# What happens: all its names are left out. mksquashfs notes the device and the inode of what is
# excluded, and not the path. (With -wildcards it goes by the path.)
# Seen with squashfs-tools 4.5.1 of Debian 12.
#
#   files: one, two (the same file), three.   -e one: three alone is in the image
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools=1:4.5.1-1 liblzo2-2=2.10-2
mkdir files
echo x >files/one
ln files/one files/two
echo y >files/three
names() { unsquashfs -l "$1" | sed -n 's|^squashfs-root/||p' | xargs; }
mksquashfs files by-inode -quiet -no-progress -e one
expect "with -e one" three "$(names by-inode)"
mksquashfs files by-path -quiet -no-progress -wildcards -e one
expect "with -wildcards -e one" "three two" "$(names by-path)"
