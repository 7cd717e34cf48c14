#!/usr/bin/env bash
# mksquashfs is given a symbolic link to the directory: `mksquashfs current image`.
#
# One would guess: the image has what is in the directory, as with mkfs.erofs or a bind mount of the link.
# What happens: the image has the link and nothing else, status 0. With a slash at the end (current/) it
# has the directory's content.
# Seen with squashfs-tools 4.5.1 of Debian 12.
#
#   mksquashfs current image: squashfs-root/current -> release      current/: squashfs-root/file
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools=1:4.5.1-1 liblzo2-2=2.10-2
mkdir release
echo x >release/file
ln -s release current
try() { # SOURCE
	local status=0
	rm -f image
	mksquashfs "$1" image -quiet -no-progress || status=$?
	echo "$status $(unsquashfs -ll image | grep -o 'squashfs-root/.*')"
}
expect "the link" "0 squashfs-root/current -> release" "$(try current)"
expect "with a slash" "0 squashfs-root/file" "$(try current/)"
