#!/usr/bin/env bash
# oci-image-tool of the Open Container Initiative takes an image apart: oci-image-tool unpack. A layer has the mark
# .wh..wh..opq in a directory: nothing of it in the layers below is to be seen.
#
# One would guess: the directory has what this layer has in it, as after umoci unpack; the tool is of those who wrote
# it.
# What happens: the mark is passed over without a word, and the old files are there beside the new ones. A mark for a
# single file (.wh.one) works.
# Seen with oci-image-tool 1.0.0~rc2+really.rc1 and umoci 0.4.7 of Debian 12. Needs root.
#
#   layers: one two; .wh.one; opaque, three:    umoci: three     oci-image-tool: three two
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs oci-image-tool=1.0.0~rc2+really.rc1+dfsg-2+b12 umoci=0.4.7+ds-3+b7
mkdir old new
touch old/one old/two new/three
umoci init --layout image
umoci new --image image:tag
umoci insert --image image:tag old /data
umoci insert --image image:tag --whiteout /data/one
umoci insert --image image:tag --opaque new /data
umoci unpack --image image:tag bundle
status=0
oci-image-tool unpack --ref name=tag image unpacked >words 2>&1 || status=$?
expect "umoci" "three" "$(ls bundle/rootfs/data | xargs)"
expect "oci-image-tool" "0 three two" "$status $(ls unpacked/data | xargs)"
