#!/usr/bin/env bash
# bsdtar makes an archive of another one without unpacking it: `bsdtar -cf NEW @OLD`, with --exclude, or with other
# names (-s "modifies file or archive member names"). Two names of OLD are one file, a hard link.
#
# One would guess: with --exclude, the name that is left has the content, as when GNU tar or mksquashfs leaves a name
# out of a directory; with -s the names are other ones, as they are when bsdtar unpacks or packs.
# What happens: an entry is copied as it stands. If the first name is left out, the other one is a link to what is not
# there, and NEW cannot be unpacked; -s does nothing. Status 0 and no word, both times.
# Seen with libarchive 3.6.2 of Debian 12.
#
#   --exclude d/a: d/b link to d/a alone      -s ,^d,e,: d/a, d/b
. "$(dirname "$0")/common.bash" || exit 2
debs libarchive-tools=3.6.2-1+deb12u5 libarchive13=3.6.2-1+deb12u5
mkdir d
echo data >d/a
ln d/a d/b
tar --sort=name -cf old.tar d/a d/b
entries() { bsdtar -tf "$1" | xargs; }
bsdtar -cf excluded.tar --exclude d/a @old.tar
expect "--exclude" "d/b" "$(entries excluded.tar)"
expect "is a link" 1 "$(tar -tvf excluded.tar | grep -c 'd/b link to d/a$')"
mkdir one two
status=0
tar -C one -xf excluded.tar 2>words || status=$?
expect "unpacked by tar" "2 0" "$status $(find one -type f | wc -l)"
tar --exclude=d/a -cf packed.tar d
expect "GNU tar, of the directory" "d/ d/b" "$(entries packed.tar)"
expect "is a file" 0 "$(tar -tvf packed.tar | grep -c 'link to' || true)"
bsdtar -cf renamed.tar -s ,^d,e, @old.tar
expect "-s" "d/a d/b" "$(entries renamed.tar)"
bsdtar -C two -xf old.tar -s ,^d,e,
expect "-s while unpacking" "a b" "$(ls two/e | xargs)"
bsdtar -cf packed.tar -s ,^d,e, d
expect "-s while packing" "e/ e/a e/b" "$(bsdtar -tf packed.tar | sort | xargs)"
