#!/usr/bin/env bash
# A layer that `umoci insert` has made, read by something else than umoci.
#
# One would guess: it is a tar archive like any other; skopeo and podman take it without a word.
# What happens: it stops after the last byte of the last file: no padding to 512 bytes, no two empty blocks at
# the end. What is written in Go does not mind. GNU tar leaves the last file cut to a multiple of 512 bytes
# and ends with 2; bsdtar has all of it and ends with 1; mksquashfs and tar2sqfs make no image. Layers of
# `umoci repack` are complete.
# Seen with umoci 0.4.7, skopeo 1.9.3, squashfs-tools 4.5.1, squashfs-tools-ng 1.2.0 and libarchive 3.6.2 of
# Debian 12.
#
#   archive of a directory and a file of 1092 bytes: 2116 = 2 * 512 + 1092
#   skopeo 0, umoci 0, bsdtar 1, mksquashfs 1, tar2sqfs 1, tar 2: "Unexpected EOF in archive", 1024 bytes
. "$(dirname "$0")/common.bash" || exit 2
debs umoci=0.4.7+ds-3+b7 skopeo=1.9.3+ds1-1+b10 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 \
	libgpg-error0=1.46-1 libdevmapper1.02.1=2:1.02.185-2 squashfs-tools=1:4.5.1-1 liblzo2-2=2.10-2 \
	squashfs-tools-ng=1.2.0-1 libsquashfs1=1.2.0-1 libarchive-tools=3.6.2-1+deb12u5 \
	libarchive13=3.6.2-1+deb12u5 jq=1.6-2.1+deb12u3 libjq1=1.6-2.1+deb12u3 libonig5=6.9.8-1
mkdir data
seq 300 >data/file
umoci init --layout image
umoci new --image image:tag
umoci insert --rootless --image image:tag data /data
manifest=$(jq -r '.manifests[0].digest' image/index.json)
layer=$(jq -r '.layers[0].digest' "image/blobs/sha256/${manifest#*:}")
zcat "image/blobs/sha256/${layer#*:}" >layer.tar
status() { local seen=0; "$@" >out 2>words || seen=$?; echo "$seen"; }
expect "size of the archive" 2116 "$(stat -c %s layer.tar)"
expect "skopeo" 0 "$(status skopeo --insecure-policy --tmpdir "$place" copy -q oci:image:tag dir:copy)"
expect "umoci unpack" 0 "$(status umoci unpack --rootless --image image:tag bundle)"
rm -r data
expect "tar" 2 "$(status tar -xf layer.tar)"
expect "its words" "Unexpected EOF in archive" "$(grep -o 'Unexpected EOF in archive' words | head -n 1)"
expect "size of the file" 1024 "$(stat -c %s data/file)"
expect "bsdtar" 1 "$(status bsdtar -xf layer.tar)"
expect "size of the file" 1092 "$(stat -c %s data/file)"
expect "mksquashfs" 1 "$(status mksquashfs - made -tar -quiet -no-progress <layer.tar)"
expect "tar2sqfs" 1 "$(status tar2sqfs -q made.ng <layer.tar)"
touch bundle/rootfs/data/new
umoci repack --image image:again bundle
manifest=$(jq -r '.manifests[] | select(.annotations[] == "again").digest' image/index.json)
layer=$(jq -r '.layers[1].digest' "image/blobs/sha256/${manifest#*:}")
zcat "image/blobs/sha256/${layer#*:}" >layer.tar
expect "tar of a layer of umoci repack" 0 "$(status tar -tf layer.tar)"
