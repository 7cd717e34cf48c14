#!/usr/bin/env bash
# sbcast puts a file on the nodes of a job: sbcast FILE DIRECTORY; sbcast IMAGE PATH, where an older IMAGE is.
#
# One would guess: it is put into the directory, and the old file is replaced, as with cp, scp and pdcp; holes in an
# image of a disk stay holes.
# What happens: "File exists" for both, and the status is errno, 17, so that a job tried again on the same nodes goes
# on with the old file if nobody looks; --force replaces a file, and does nothing for a directory. Holes are filled:
# an image of 8 MiB that has nothing takes 8 MiB of each node's memory, where /tmp is a tmpfs.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   onto a directory: 17     onto a file: 17, the old one stays     blocks of an empty image: 0 becomes 16384
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
mkdir node directory
echo old >node/file
echo new >file
truncate -s 8M image
cat >job <<END
cd "$place"
sbcast file "$place/directory"
echo "\$? \$(ls directory)"
sbcast file "$place/node/file"
echo "\$? \$(cat node/file)"
sbcast --force file "$place/node/file"
echo "\$? \$(cat node/file)"
sbcast image "$place/node/image"
echo "\$? \$(stat -c %b image) \$(stat -c %b node/image)"
END
salloc -Q -n1 bash job >out 2>words
expect "onto a directory" "17 " "$(sed -n 1p out)"
expect "onto a file" "17 old" "$(sed -n 2p out)"
expect "with --force" "0 new" "$(sed -n 3p out)"
read -r status before after < <(sed -n 4p out)
expect "image with holes" "0 0" "$status $before"
expect "on the node it is full" yes "$(((after >= 16384)) && echo yes)"
