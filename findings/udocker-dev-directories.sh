#!/usr/bin/env bash
# An image for udocker, which runs containers without root, has files in a directory called dev that is not /dev:
# /srv/dev/settings for a service's developers, or node_modules/…/dev.
#
# One would guess: only what is below /dev is left out, as udocker's containers get the host's /dev; all other files
# are there, as with every engine.
# What happens: all files below any directory of that name are gone, without a word; the directory is there, empty.
# udocker calls tar with --exclude=dev/*, and such a pattern of GNU tar holds anywhere in a path.
# Seen with udocker 1.3.17 and GNU tar 1.34; the image is of umoci 0.4.7 of Debian 12.
#
#   of srv/dev/settings and srv/other/settings: srv/other/settings
. "$(dirname "$0")/common.bash" || exit 2
debs umoci=0.4.7+ds-3+b7
mkdir -p layer/srv/dev layer/srv/other home
touch layer/srv/dev/settings layer/srv/other/settings
tar -C layer -cf layer.tar srv
umoci init --layout image
umoci new --image image:1
umoci raw add-layer --image image:1 layer.tar
tar -C image -cf image.tar index.json oci-layout blobs
unset LD_LIBRARY_PATH
pips udocker==1.3.17
# What udocker would fetch, tools to run containers, is not needed to make one.
export HOME=$place/home UDOCKER_TARBALL=$place/none
udocker() { "$place/venv/bin/udocker" --allow-root "$@" >>words 2>&1; }
udocker load -i image.tar app || cannot "udocker cannot load the image: $(tail -n 1 words)"
udocker create --name=box app:1 || cannot "udocker cannot make a container: $(tail -n 1 words)"
cd home/.udocker/containers/*-*/ROOT
expect "files" srv/other/settings "$(find srv -type f)"
expect "the directory" srv/dev "$(find srv -type d -name dev)"
