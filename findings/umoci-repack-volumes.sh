#!/usr/bin/env bash
# An image is unpacked with umoci, files are put into its root file system, and `umoci repack` makes a layer of what
# has changed. Some of them lie below a path that the image has under Volumes, such as a first set of data.
#
# One would guess: all changes are in the layer, as after `umoci insert`, which takes the same path, and `buildah
# commit`; or umoci says what it leaves out.
# What happens: those below a volume are not in it, status 0, not a word. --no-mask-volumes takes them.
# Seen with umoci 0.4.7 of Debian 12. Needs root.
#
#   data/new and other are written: the next image has other     with --no-mask-volumes: data/new other
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs umoci=0.4.7+ds-3+b7
umoci init --layout layout
umoci new --image layout:tag
umoci config --image layout:tag --config.volume /data
repacked() { # OPTION…: files of the image made of the changed tree
	rm -rf bundle again
	umoci unpack --image layout:tag bundle 2>words
	mkdir bundle/rootfs/data
	touch bundle/rootfs/data/new bundle/rootfs/other
	umoci repack "$@" --image layout:next bundle >>words 2>&1
	umoci unpack --image layout:next again 2>>words
	(cd again/rootfs && find . -type f -printf '%P\n' | sort | xargs)
}
expect "umoci repack" other "$(repacked)"
expect "with --no-mask-volumes" "data/new other" "$(repacked --no-mask-volumes)"
