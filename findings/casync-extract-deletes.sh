#!/usr/bin/env bash
# casync brings a directory up to date with an image, into one that has other files too: casync extract IMAGE.caidx DIR.
#
# One would guess: the files of the image are made or replaced, and others stay, as with tar, unzip, unsquashfs -f and
# docker cp; rsync has to be asked for the opposite.
# What happens: all that the image does not have is deleted, without a word or a question. --delete=no keeps it.
# Seen with casync 2+20201210 of Debian 12.
#
#   DIR has mine, the image has one: afterwards one     with --delete=no: mine one
. "$(dirname "$0")/common.bash" || exit 2
debs casync=2+20201210-1+b1
mkdir source
echo 1 >source/one
casync make image.caidx source >digest
try() { # OPTION…: what the directory has afterwards, and what was said
	rm -rf target
	mkdir target
	echo kept >target/mine
	casync extract "$@" image.caidx target 2>&1
	ls target | xargs
}
expect "without options" "one" "$(try)"
expect "--delete=no" "mine one" "$(try --delete=no)"
