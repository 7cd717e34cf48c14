#!/usr/bin/env bash
# A tar archive has a file with holes, such as the image of a disk or /var/log/lastlog, and is made with `tar --sparse
# --format=pax`. A small image unpacks it with busybox; other systems with pax.
#
# One would guess: the file, full of zeros instead of holes at worst; or an error, as busybox has for GNU tar's own
# kind of sparse file.
# What happens: there is no such file, status 0, not a word. There is a directory GNUSparseFile.NUMBER instead, with a
# file that is too short: a list of numbers, and the parts that have data, one behind the other. What the holes are is
# in records that both pass over. bsdtar, Python, mksquashfs and umoci read it.
# Seen with GNU tar 1.34, busybox 1.35.0, pax 20201030 and libarchive 3.6.2 of Debian 12.
#
#   disk of 2 MiB with 8 bytes:   bsdtar: disk 2097152     busybox, pax: GNUSparseFile.N/disk 8704
. "$(dirname "$0")/common.bash" || exit 2
debs tar=1.34+dfsg-1.2+deb12u1 busybox-static=1:1.35.0-4+deb12u1+b1 pax=1:20201030-1 \
	libarchive-tools=3.6.2-1+deb12u5 libarchive13=3.6.2-1+deb12u5
truncate -s 2M disk
printf head | dd of=disk conv=notrunc 2>words
printf tail | dd of=disk bs=1 seek=1M conv=notrunc 2>words
tar --sparse --format=pax -cf archive.tar disk
unpacked() { # COMMAND…: the files that are there, and their sizes
	local status=0
	rm -rf out
	mkdir out
	(cd out && "$@" 2>../words) || status=$?
	(cd out && find . -type f -printf '%P %s' | sed 's/File\.[0-9]*/File.N/')
	echo ", status $status, $(cat words)"
}
expect "bsdtar" "disk 2097152, status 0, " "$(unpacked bsdtar -xf ../archive.tar)"
expect "busybox" "GNUSparseFile.N/disk 8704, status 0, " "$(unpacked busybox tar -xf ../archive.tar)"
expect "pax" "GNUSparseFile.N/disk 8704, status 0, " "$(unpacked pax -r -f ../archive.tar)"
