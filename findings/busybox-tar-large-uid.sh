#!/usr/bin/env bash
# A layer has a file of user 2097152 or more, such as the numbers that sssd gives to users of a directory service,
# and busybox (an initramfs, a small image) unpacks it.
#
# One would guess: the file has that owner, as after GNU tar; busybox's tar restores owners, and takes such numbers from
# archives of GNU tar. Or it cannot read the number, and says so.
# What happens: the file is root's, without a word, status 0. Layers are in the pax format, whose header has 0 where
# the number does not fit, and the number in a record beside it; busybox passes over the record.
# Seen with busybox 1.35.0 and umoci 0.4.7 of Debian 12. Needs root.
#
#   in the image: 1234, 2097151, 2097152     unpacked: 1234, 2097151, 0     from GNU tar's own format: 2097152
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs busybox-static=1:1.35.0-4+deb12u1+b1 umoci=0.4.7+ds-3+b7
umoci init --layout image
umoci new --image image:tag
umoci unpack --image image:tag bundle
for owner in 1234 2097151 2097152; do
	touch "bundle/rootfs/$owner"
	chown "$owner:$owner" "bundle/rootfs/$owner"
done
umoci repack --image image:tag bundle
layer=$(find image/blobs -type f -exec sh -c 'gzip -t "$1" 2>/dev/null && echo "$1"' sh {} ';')
owners() { # PROGRAM…: unpacks standard input; prints whose the files are
	mkdir unpacked
	"$@" -x -f - -C unpacked
	stat -c %u unpacked/1234 unpacked/2097151 unpacked/2097152 | xargs
	rm -r unpacked
}
expect "layer, GNU tar" "1234 2097151 2097152" "$(gzip -dc "$layer" | owners tar)"
expect "layer, busybox" "1234 2097151 0" "$(gzip -dc "$layer" | owners root/bin/busybox tar)"
expect "GNU tar's format, busybox" "1234 2097151 2097152" \
	"$(tar -C bundle/rootfs -cf - . | owners root/bin/busybox tar)"
