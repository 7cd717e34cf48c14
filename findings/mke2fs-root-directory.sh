#!/usr/bin/env bash
# An ext4 image is made of a directory without mounting it: mke2fs -d DIRECTORY IMAGE SIZE. The directory has mode 1777
# or 700 and an owner, such as that of a container's scratch or a user's home.
#
# One would guess: the root directory of the image has the mode and owner of DIRECTORY, as with mksquashfs, mkfs.erofs,
# tar and cp -a. What is in it has its own.
# What happens: it is root's with mode 755. So a user cannot write at the top of the image, and everybody may look into
# what was closed. -E root_owner=UID:GID gives the owner; for the mode there is only debugfs afterwards.
# Seen with e2fsprogs 1.47.0 of Debian 12. Needs root.
#
#   DIRECTORY 1777 5:6, sub 1770 5:6:    in the image: / 0755 0:0    /sub 01770 5:6
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs e2fsprogs=1.47.0-2+b2 libext2fs2=1.47.0-2+b2 libcom-err2=1.47.0-2+b2 libss2=1.47.0-2+b2
mkdir -p source/sub
chown 5:6 source source/sub
chmod 1777 source
chmod 1770 source/sub
mke2fs -q -t ext4 -d source image 8M >words
mode() { # PATH
	debugfs -R "stat $1" image 2>>words |
		sed -nE 's/.*Mode: +([0-7]+) .*/\1/p; s/^User: +([0-9]+) +Group: +([0-9]+) .*/\1:\2/p' | xargs
}
expect "sub" "01770 5:6" "$(mode /sub)"
expect "root directory" "0755 0:0" "$(mode /)"
