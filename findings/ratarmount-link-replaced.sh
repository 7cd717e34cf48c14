#!/usr/bin/env bash
# A tar archive is mounted with ratarmount. A file in it has two names, a hard link, and one of them was replaced later
# in the archive, as `tar --append` (-r, -u) leaves it.
#
# One would guess: as after unpacking: the replaced name has the new content, the other one the old, since tar removes
# a name before it writes the new file. The archive has both contents.
# What happens: both names have the new content: ratarmount follows a hard link by its name when it is read, and then
# that name is another file.
# Seen with ratarmount 1.3.0 and GNU tar 1.34. Needs root and /dev/fuse.
#
#   a, b a link to it, a again: tar new and old, ratarmount new and new
. "$(dirname "$0")/common.bash" || exit 2
root_only
[[ -c /dev/fuse ]] || cannot "there is no /dev/fuse"
pips ratarmount==1.3.0 ratarmountcore==0.11.1
mkdir files out mount
echo old >files/a
ln files/a files/b
tar -C files --sort=name -cf archive.tar a b
rm files/a
echo new >files/a
tar -C files -rf archive.tar a
tar -C out -xf archive.tar
on_exit+=("umount mount 2>>words")
ratarmount --index-file :memory: archive.tar mount >words 2>&1 || cannot "it cannot be mounted: $(tail -n 1 words)"
expect tar "new old" "$(cat out/a out/b | xargs)"
expect ratarmount "new new" "$(cat mount/a mount/b | xargs)"
