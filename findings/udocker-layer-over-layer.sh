#!/usr/bin/env bash
# An image for udocker, which runs containers without root, has two layers. The upper one deletes a file and a directory
# in / (.wh.file, as `RUN rm /file` makes it), and replaces one of two names of a file, a hard link: bin/python3 is new,
# bin/python3.11 stays.
#
# One would guess: as with every engine: both are gone, and bin/python3.11 is what it was.
# What happens: both are there: udocker looks for marks as */.wh.*, which a mark in the root directory is not. Both
# names have the new content: it unpacks with `tar --overwrite`, which writes into the file that is there.
# Seen with udocker 1.3.17 and GNU tar 1.34; the image is of umoci 0.4.7 of Debian 12.
#
#   .wh.file, .wh.directory: both there; below a directory it works      bin/python3 new, bin/python3.11 new
. "$(dirname "$0")/common.bash" || exit 2
. "$here/udocker.bash"
mkdir -p lower/bin lower/directory lower/opt upper/bin upper/opt
echo old >lower/bin/python3.11
ln lower/bin/python3.11 lower/bin/python3
touch lower/file lower/directory/file lower/opt/file
echo new >upper/bin/python3
touch upper/.wh.file upper/.wh.directory upper/opt/.wh.file
tar -C lower --sort=name -cf lower.tar bin directory file opt
tar -C upper -cf upper.tar .wh.directory .wh.file bin/python3 opt/.wh.file
udocker_container lower.tar upper.tar
expect "what was deleted in /" "directory/file file" "$(find . -name file -printf '%P\n' | sort | xargs)"
expect "python3 and python3.11" "new new" "$(cat bin/python3 bin/python3.11 | xargs)"
