#!/usr/bin/env bash
# `umoci new --image LAYOUT:TAG`, where the layout has an image with this tag; `umoci tag --image LAYOUT:OTHER TAG`.
#
# One would guess: both are refused, as is `umoci init` of a layout that is there, and `git tag` and `git branch` of a
# name that is taken.
# What happens: status 0, not a word. After `new` TAG is an empty image, and the old one can be reached by no name:
# `umoci gc` deletes it. Likewise `umoci rm` of a tag that does not exist is 0.
# Seen with umoci 0.4.7 of Debian 12. Needs root.
#
#   files: file     after `umoci new` again: none, status 0     umoci init again: 1     umoci rm of another: 0
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs umoci=0.4.7+ds-3+b7
echo data >file
umoci init --layout layout
umoci new --image layout:tag
umoci insert --image layout:tag file /file 2>words
files() { # what the image has
	rm -rf bundle
	umoci unpack --image layout:tag bundle 2>words
	(cd bundle/rootfs && find . -type f)
}
status() {
	local status=0
	"$@" >words 2>&1 || status=$?
	echo "$status $(wc -l <words)"
}
expect "files" ./file "$(files)"
expect "umoci init" "1 1" "$(status umoci init --layout layout)"
expect "umoci rm" "0 0" "$(status umoci rm --image layout:other)"
expect "umoci new" "0 0" "$(status umoci new --image layout:tag)"
expect "files afterwards" "" "$(files)"
