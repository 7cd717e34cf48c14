#!/usr/bin/env bash
# fsck.erofs --extract takes an image apart, called by root.
#
# One would guess: the files are as they were, as after unsquashfs, tar -x or a copy from the mounted image.
# What happens: it changes the mode before the owner, and a change of owner takes set-user-ID away, so `su` and
# `sudo` of that tree do not work. The two names of a file become two files. Not a word, status 0.
# Seen with erofs-utils 1.5 of Debian 12. Needs root.
#
#   image from: -rwsr-xr-x, 2 links      extracted: -rwxr-xr-x, 1 link
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs erofs-utils=1.5-1
mkdir files
echo x >files/one
chown 5:6 files/one
chmod 4755 files/one
ln files/one files/two
mkfs.erofs image files >/dev/null
seen=0
fsck.erofs --extract=out image >words 2>&1 || seen=$?
expect "status" 0 "$seen"
expect "words" "" "$(cat words)"
expect "before" "-rwsr-xr-x 5:6 2" "$(stat -c '%A %u:%g %h' files/one)"
expect "after" "-rwxr-xr-x 5:6 1" "$(stat -c '%A %u:%g %h' out/one)"
