#!/usr/bin/env bash
# An OCI image goes to a docker-archive with skopeo and comes back. Nothing in it changes.
#
# One would guess: the manifest may have another digest, because the format of manifests differs, but
# the image ID, the digest of the configuration, is the same: that file is in the archive as it was.
# What happens: on the way back skopeo decodes the configuration and writes it anew. If the JSON had
# been written in another way (here: a line feed at its end, which umoci writes), the ID is another.
# Seen with skopeo 1.9.3 and umoci 0.4.7 of Debian 12.
#
#   the archive has the file ID.json of the first ID; the image that comes from it has another ID,
#   with the same values
. "$(dirname "$0")/common.bash" || exit 2
debs skopeo=1.9.3+ds1-1+b10 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 \
	libgpg-error0=1.46-1 libdevmapper1.02.1=2:1.02.185-2 umoci=0.4.7+ds-3+b7 \
	jq=1.6-2.1+deb12u3 libjq1=1.6-2.1+deb12u3 libonig5=6.9.8-1
copy() { skopeo --insecure-policy --tmpdir "$place" copy -q "$@"; }
id() { # LAYOUT: that of its only image
	local manifest
	manifest=$(jq -r '.manifests[0].digest' "$1/index.json")
	jq -r .config.digest "$1/blobs/sha256/${manifest#*:}"
}
mkdir data
umoci init --layout before
umoci new --image before:tag
umoci insert --rootless --image before:tag data /data
umoci config --image before:tag --config.cmd sh
copy oci:before:tag docker-archive:archive.tar:name:tag
copy docker-archive:archive.tar oci:after:tag
old=$(id before) new=$(id after)
expect "configuration in the archive" "${old#*:}.json" "$(tar -tf archive.tar | grep '^[0-9a-f]*\.json$')"
expect "same image ID" no "$([[ $old == "$new" ]] && echo yes || echo no)"
expect "same values" yes "$(jq -nr --slurpfile a "before/blobs/sha256/${old#*:}" \
	--slurpfile b "after/blobs/sha256/${new#*:}" 'if $a == $b then "yes" else "no" end')"
