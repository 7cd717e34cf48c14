#!/usr/bin/env bash
# chmod of a large file with holes in the lower layer, such as /var/log/lastlog where users have large numbers, or the
# image of a disk, with fuse-overlayfs, which engines use without root.
#
# One would guess: the copy in the upper directory has the holes too, as one by cp has; or, for a change of the mode, no
# content is copied at all.
# What happens: the copy is full: every zero is written. A file that takes nothing in the image fills the disk, or the
# user's quota.
# Seen with fuse-overlayfs 1.10 of Debian 12. Needs root and /dev/fuse.
#
#   a file of 64 MiB, all of it a hole: in the lower layer 0, in the upper after chmod 64 MiB
. "$(dirname "$0")/common.bash" || exit 2
root_only
[[ -e /dev/fuse ]] || cannot "it needs /dev/fuse"
debs fuse-overlayfs=1.10-1 libfuse3-3=3.14.0-4
mkdir lower upper work mount
on_exit+=("umount --lazy '$place/mount' 2>/dev/null")
truncate --size=64M lower/file
taken() { du --block-size=1M "$1/file" | cut -f1; }
expect "MiB in the lower layer" 0 "$(taken lower)"
cp lower/file copy
expect "MiB of a copy by cp" 0 "$(du --block-size=1M copy | cut -f1)"
fuse-overlayfs -o lowerdir=lower,upperdir=upper,workdir=work mount 2>words || cannot "$(cat words)"
chmod 600 mount/file
expect "MiB in the upper directory" 64 "$(taken upper)"
