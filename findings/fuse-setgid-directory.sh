#!/usr/bin/env bash
# A directory with the set-group-ID bit and a group that people share (2775), as for projects on clusters, in an
# overlay of fuse-overlayfs or in an ext4 image of fuse2fs, as engines mount them without root.
#
# One would guess: what is made in it has the directory's group, and directories have the bit too, as on every file
# system of the kernel's; the image's own file system is ext4, and the layer below is the host's.
# What happens: with fuse-overlayfs a new file has the group, but a new directory has the group of who makes it and no
# bit, so from the second level on everything is closed to the others. With fuse2fs files and directories have
# the maker's group, and directories the bit nevertheless. bindfs and mergerfs do as the kernel does.
# Seen with fuse-overlayfs 1.10, fuse2fs 1.47.0, bindfs 1.14.7 and mergerfs 2.33.5 of Debian 12. Needs root and
# /dev/fuse.
#
#   directory 2775, group 2000; then a file and a directory in it:
#   kernel, bindfs, mergerfs: 2000, 2000 2755    fuse-overlayfs: 2000, 0 755    fuse2fs: 0, 0 2755
. "$(dirname "$0")/common.bash" || exit 2
root_only
[[ -e /dev/fuse ]] || cannot "it needs /dev/fuse"
debs fuse-overlayfs=1.10-1 fuse2fs=1.47.0-2+b2 bindfs=1.14.7-1 mergerfs=2.33.5-1 libfuse3-3=3.14.0-4 \
	libfuse2=2.9.9-6+b1 e2fsprogs=1.47.0-2+b2 libext2fs2=1.47.0-2+b2 libcom-err2=1.47.0-2+b2
mkdir plain lower upper work one two three mount
on_exit+=("umount --lazy '$place/mount' 2>/dev/null")
seen() { # DIRECTORY: groups of what is made there, and the mode of the new directory
	mkdir "$1/shared"
	chgrp 2000 "$1/shared"
	chmod 2775 "$1/shared"
	touch "$1/shared/file"
	mkdir "$1/shared/directory"
	echo "$(stat -c %g "$1/shared/file"), $(stat -c '%g %a' "$1/shared/directory")"
}
try() { # EXPECTED PROGRAM ARGUMENT…
	local expected=$1
	shift
	"$@" mount >words 2>&1 || cannot "$1: $(tail -n 1 words)"
	expect "$1" "$expected" "$(seen mount)"
	umount mount
}
expect "without FUSE" "2000, 2000 2755" "$(seen plain)"
try "2000, 0 755" fuse-overlayfs -o lowerdir=lower,upperdir=upper,workdir=work
truncate -s 20M image
mke2fs -q -t ext4 image
try "0, 0 2755" fuse2fs image
try "2000, 2000 2755" bindfs one
try "2000, 2000 2755" mergerfs two:three
