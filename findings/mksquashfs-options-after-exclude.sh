#!/usr/bin/env bash
# mksquashfs has options after -e NAME, as in `-e tmp -comp zstd -all-root`.
#
# One would guess: they are options, wherever they stand: all others may stand anywhere. Or, if -e takes
# all words that follow, it says that there is no file "-comp".
# What happens: all of them are names to leave out, and names that are not there pass without a word. The
# image has the default compressor and the files' own owners, and the status is 0.
# Seen with squashfs-tools 4.5.1 of Debian 12.
#
#   -comp zstd -e one: Compression zstd      -e one -comp zstd: Compression gzip, status 0, no words
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools=1:4.5.1-1 liblzo2-2=2.10-2
mkdir files
echo x >files/one
echo y >files/two
try() { # OPTION…: the compressor, and what is in the image
	local status=0
	rm -f image
	mksquashfs files image -quiet -no-progress "$@" >words 2>&1 || status=$?
	echo "$status $(unsquashfs -s image | sed -n 's/^Compression //p') $(unsquashfs -l image | sed -n 's|^squashfs-root/||p')"
}
expect "options before" "0 zstd two" "$(try -comp zstd -e one)"
expect "options after" "0 gzip two" "$(try -e one -comp zstd)"
expect "words" "" "$(cat words)"
