#!/usr/bin/env bash
# skopeo copies an image to oci:DIRECTORY:TAG, where another image has that tag.
#
# One would guess: the new image takes the place of the old one in index.json; the directory still has one.
# What happens: the old one stays in index.json, without its tag. `oci:DIRECTORY` alone, which named the
# only image, is refused from now on, the files of the old image stay, and `umoci gc` takes it for used.
# Seen with skopeo 1.9.3 and umoci 0.4.7 of Debian 12.
#
#   manifests in index.json: 1, then 2      oci:DIRECTORY: more than one image in oci, choose an image
. "$(dirname "$0")/common.bash" || exit 2
debs umoci=0.4.7+ds-3+b7 skopeo=1.9.3+ds1-1+b10 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 \
	libgpg-error0=1.46-1 libdevmapper1.02.1=2:1.02.185-2 jq=1.6-2.1+deb12u3 \
	libjq1=1.6-2.1+deb12u3 libonig5=6.9.8-1
umoci init --layout images
for name in one two; do
	umoci new --image "images:$name"
	umoci config --image "images:$name" --config.cmd "$name"
done
copy() { skopeo --insecure-policy --tmpdir "$place" copy -q "$@"; }
copy oci:images:one oci:layout:tag
expect "manifests" 1 "$(jq '.manifests | length' layout/index.json)"
copy oci:layout oci:elsewhere # no tag: the only image
copy oci:images:two oci:layout:tag
expect "manifests after the second copy" 2 "$(jq '.manifests | length' layout/index.json)"
expect "with the tag" 1 \
	"$(jq '[.manifests[] | select(.annotations != null)] | length' layout/index.json)"
seen=0
copy oci:layout oci:elsewhere 2>words || seen=$?
expect "status without a tag" 1 "$seen"
expect "words" "more than one image in oci" "$(grep -o 'more than one image in oci' words)"
umoci gc --layout layout
expect "files after umoci gc" 4 "$(find layout/blobs -type f | wc -l)" # two manifests, two configurations
