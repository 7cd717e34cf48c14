#!/usr/bin/env bash
# gensquashfs of squashfs-tools-ng makes an image of a directory (--pack-dir) in which a program has several names,
# hard links, as those of git and perl have.
#
# One would guess: they are one file in the image, as with mksquashfs and as with tar2sqfs, which comes with it.
# What happens: each name becomes a file of its own. The data is there once, since equal files are found, but a tool
# that unpacks the image, or copies from it, writes all of them: sqfs2tar's archive has the data as often as names.
# The times of all files are 0, 1970, too, if --keep-time is not given.
# Seen with squashfs-tools-ng 1.2.0 of Debian 12.
#
#   files of 1 MiB in sqfs2tar's archive, of one with three names: gensquashfs 3, tar2sqfs 1
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools-ng=1.2.0-1 libsquashfs1=1.2.0-1
mkdir source
head -c 1M /dev/urandom >source/git
ln source/git source/git-add
ln source/git source/git-log
gensquashfs --quiet --pack-dir source --keep-time directory.sqfs
tar -c -C source . | tar2sqfs --quiet archive.sqfs
expect "the image has the data once" 1 "$(($(stat -c %s directory.sqfs) / 1048576))"
files() { sqfs2tar "$1" | tar -tv | grep -c '^-.* 1048576 '; }
expect "files, gensquashfs" 3 "$(files directory.sqfs)"
expect "files, tar2sqfs" 1 "$(files archive.sqfs)"
