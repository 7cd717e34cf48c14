#!/usr/bin/env bash
# `ctr image import` of an archive of an OCI layout, whose image has the tag "tag" (ref.name in index.json).
#
# One would guess: the image has a name made of the tag, the same each time.
# What happens: its name is import-DATE:tag with the date of today, so a script that runs it by its name works
# until midnight. --base-name gives it a fixed one. (With an archive of `docker save` the name is
# that in the archive.)
# Seen with containerd 1.6.20 and umoci 0.4.7 of Debian 12. Needs root.
#
#   import-2026-11-28:tag      with --base-name name: name:tag
. "$(dirname "$0")/common.bash" || exit 2
. "$here/containerd.bash"
containerd_daemon umoci=0.4.7+ds-3+b7
umoci init --layout image
umoci new --image image:tag
tar -C image -cf archive.tar .
before=$(date +%F)
ask image import --no-unpack archive.tar >>words
[[ $before == $(date +%F) ]] || cannot "it has become midnight"
expect "name" "import-$before:tag" "$(ask image list -q)"
ask image remove "import-$before:tag" >>words
ask image import --no-unpack --base-name name archive.tar >>words
expect "name with --base-name" "name:tag" "$(ask image list -q)"
