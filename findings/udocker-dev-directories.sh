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
. "$here/udocker.bash"
mkdir -p layer/srv/dev layer/srv/other
touch layer/srv/dev/settings layer/srv/other/settings
tar -C layer -cf layer.tar srv
udocker_container layer.tar
expect "files" srv/other/settings "$(find srv -type f)"
expect "the directory" srv/dev "$(find srv -type d -name dev)"
