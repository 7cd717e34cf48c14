#!/usr/bin/env bash
# A squashfs image in which a file has two names, mounted with squashfuse.
#
# One would guess: both names have one inode number, as when the kernel or squashfuse_ll mounts the image, so that tar,
# cp -a, rsync -H and du see one file.
# What happens: squashfuse makes up a number for each name. The count of links is 2, but the names are two files to
# whoever copies them: what tar makes of the tree is larger, and they are no longer one.
# Seen with squashfuse 0.1.105 and squashfs-tools 4.5.1 of Debian 12. Needs root and /dev/fuse.
#
#   numbers of one and two: squashfuse: differ       squashfuse_ll: the same
#   entries of tar:         squashfuse: two files    squashfuse_ll: one file, one link to it
. "$(dirname "$0")/common.bash" || exit 2
root_only
[[ -e /dev/fuse ]] || cannot "it needs /dev/fuse"
debs squashfuse=0.1.105-1 libsquashfuse0=0.1.105-1 libfuse3-3=3.14.0-4 squashfs-tools=1:4.5.1-1
mkdir tree mount
echo content >tree/one
ln tree/one tree/two
mksquashfs tree image -quiet -no-progress
on_exit+=("umount --lazy '$place/mount' 2>/dev/null")
try() { # PROGRAM NUMBERS KINDS: how many inode numbers the names have, and what tar makes of them
	"$1" image mount
	expect "$1: links" "2 2" "$(stat -c %h mount/one mount/two | xargs)"
	expect "$1: numbers" "$2" "$(stat -c %i mount/one mount/two | sort -u | wc -l)"
	expect "$1: tar" "$3" "$(tar -C mount -cf - one two | tar -tvf - | cut -c1 | xargs)"
	umount mount
	while mountpoint -q mount; do sleep 0.1; done
}
try squashfuse 2 "- -"
try squashfuse_ll 1 "- h"
