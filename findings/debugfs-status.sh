#!/usr/bin/env bash
# debugfs puts files into an ext4 image without mounting it, as scripts that make images without root do:
# `debugfs -w -R 'write FILE NAME' IMAGE`, or several such lines with -f.
#
# One would guess: a status other than 0 if a line fails, as with `sftp -b`, `parted -s` and guestfish; so `set -e` ends
# the script.
# What happens: a line on standard error and status 0, also with -f, which goes on with the next line. The image lacks
# the file, and e2fsck finds nothing wrong. What tells is standard error, where each call also puts its version.
# Seen with e2fsprogs 1.47.0 of Debian 12.
#
#   write of a file that is not there: status 0; cat of it from the image: status 0, no output
. "$(dirname "$0")/common.bash" || exit 2
debs e2fsprogs=1.47.0-2+b2 libext2fs2=1.47.0-2+b2
truncate --size=4M image
mkfs.ext4 -q -F image
echo content >file
status() { # ARGUMENT…: of debugfs
	local status=0
	debugfs "$@" >out 2>words || status=$?
	echo "$status"
}
expect "write of what is not there" 0 "$(status -w -R 'write missing missing' image)"
expect "its words" 1 "$(grep -c 'write: No such file' words)"
printf '%s\n' 'write missing missing' 'mkdir file/directory' 'write file file' >lines
expect "three lines, two wrong" 0 "$(status -w -f lines image)"
expect "cat of the file" "0 content" "$(status -R 'cat file' image) $(cat out)"
expect "cat of the missing one" "0 " "$(status -R 'cat missing' image) $(cat out)"
e2fsck -fn image >/dev/null 2>&1 || exit 1
