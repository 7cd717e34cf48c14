#!/usr/bin/env bash
# skopeo copies two images, under two names, to the same oci-archive:FILE.
#
# One would guess: the archive has both, as the directory of oci: has; or the second copy is refused, as
# that to a docker-archive: is.
# What happens: the second copy succeeds and replaces the file. The first image is gone.
# Seen with skopeo 1.9.3 and umoci 0.4.7 of Debian 12.
#
#   names in oci:DIRECTORY: one two      in oci-archive:FILE: two      docker-archive: status 1
. "$(dirname "$0")/common.bash" || exit 2
debs umoci=0.4.7+ds-3+b7 skopeo=1.9.3+ds1-1+b10 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 \
	libgpg-error0=1.46-1 libdevmapper1.02.1=2:1.02.185-2 jq=1.6-2.1+deb12u3 \
	libjq1=1.6-2.1+deb12u3 libonig5=6.9.8-1
umoci init --layout images
for name in one two; do
	umoci new --image "images:$name"
	umoci config --image "images:$name" --config.cmd "$name"
done
copy() { # SOURCE TARGET: prints the status
	local status=0
	skopeo --insecure-policy --tmpdir "$place" copy -q "$1" "$2" 2>words || status=$?
	echo "$status"
}
names() { jq -r '.manifests[].annotations["org.opencontainers.image.ref.name"]' | xargs; }
for name in one two; do
	expect "$name to oci" 0 "$(copy "oci:images:$name" "oci:layout:$name")"
	expect "$name to oci-archive" 0 "$(copy "oci:images:$name" "oci-archive:archive.tar:$name")"
done
expect "names in the directory" "one two" "$(names <layout/index.json)"
expect "names in the archive" "two" "$(tar -xOf archive.tar index.json | names)"
expect "one to docker-archive" 0 "$(copy oci:images:one docker-archive:docker.tar:name:one)"
expect "two to docker-archive" 1 "$(copy oci:images:two docker-archive:docker.tar:name:two)"
