#!/usr/bin/env bash
# skopeo copies an image with layers in zstd into a layout: --dest-compress-format zstd. The layout has the same image
# already, under another tag, with gzip.
#
# One would guess: the new image's layers are in zstd, as in an empty layout; that is what was asked for.
# What happens: they are those of before, in gzip, status 0 and no word of it: skopeo looks whether the destination
# has a layer before it compresses. So whether the option has an effect depends on what was copied earlier, by
# whomever.
# Seen with skopeo 1.9.3 and umoci 0.4.7 of Debian 12.
#
#   into an empty layout: tar+zstd      into one with the image in gzip: tar+gzip
. "$(dirname "$0")/common.bash" || exit 2
debs skopeo=1.9.3+ds1-1+b10 umoci=0.4.7+ds-3+b7
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
copy() { skopeo --policy policy.json --tmpdir "$place" copy --quiet "$@"; }
head -c 100000 /dev/zero >file
umoci init --layout source
umoci new --image source:tag
umoci insert --image source:tag file /file 2>words
layer() { skopeo --policy policy.json inspect --raw "oci:$1" | grep -o 'tar+[a-z]*'; }
copy --dest-compress-format zstd oci:source:tag oci:empty:new
expect "into an empty layout" tar+zstd "$(layer empty:new)"
copy oci:source:tag oci:used:old
copy --dest-compress-format zstd oci:source:tag oci:used:new
expect "beside gzip" tar+gzip "$(layer used:new)"
