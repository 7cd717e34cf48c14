#!/usr/bin/env bash
# A file name of 252 to 255 bytes, as caches and package managers make them of URLs and digests, in an overlay of
# fuse-overlayfs, which engines use without root.
#
# One would guess: 255 bytes, as everywhere: the directories below allow them.
# What happens: 251 is the most. A deleted file is marked with ".wh." before its name, and that must fit as well. What
# can be written in the directories below fails here with "File name too long"; names in a lower layer that are
# longer can be read. getconf NAME_MAX says it.
# Seen with fuse-overlayfs 1.10 of Debian 12. Needs root and /dev/fuse.
#
#   251: ok     252: File name too long     255 in the lower layer: can be read     getconf NAME_MAX: 251
. "$(dirname "$0")/common.bash" || exit 2
root_only
[[ -e /dev/fuse ]] || cannot "it needs /dev/fuse"
debs fuse-overlayfs=1.10-1 libfuse3-3=3.14.0-4
mkdir lower upper work mount
on_exit+=("umount --lazy '$place/mount' 2>/dev/null")
name() { printf "%0${1}d" 0; }
echo here >"lower/$(name 255)"
fuse-overlayfs -o lowerdir=lower,upperdir=upper,workdir=work mount 2>words || cannot "$(cat words)"
expect "255, in the lower layer" here "$(cat "mount/$(name 255)")"
expect "NAME_MAX, lower layer" 255 "$(getconf NAME_MAX lower)"
expect "NAME_MAX, overlay" 251 "$(getconf NAME_MAX mount)"
expect "251" "" "$(touch "mount/$(name 251)" 2>&1)"
expect "252" "File name too long" "$(touch "mount/$(name 252)" 2>&1 | sed 's/.*: //')"
