#!/usr/bin/env bash
# A program in a container replaces a file of the image, as `sed -i`, editors and package managers do: it writes a new
# one beside it and renames that over the old one. Later the file is removed. The overlay is fuse-overlayfs's.
#
# One would guess: the file is gone, as with the overlay of the kernel, and as after `rm` of a file that was not
# replaced.
# What happens: `rm` ends with 0, and the file of the image is back, with its old content; it is so after the next
# mount, too. The rename puts no mark against the lower file, and at `rm` nothing is known of that. A second `rm` does
# remove it.
# Seen with fuse-overlayfs 1.10 of Debian 12. Needs root and /dev/fuse.
#
#   sed -i s/old/new/ conf, rm conf: 0; cat conf: old     without sed: No such file     the kernel's: No such file
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs fuse-overlayfs=1.10-1 libfuse3-3=3.14.0-4
[[ -c /dev/fuse ]] || cannot "it needs /dev/fuse"
mkdir lower upper work mounted
options=lowerdir=lower,upperdir=upper,workdir=work
on_exit+=("umount mounted 2>/dev/null")
mounts() { fuse-overlayfs -o "$options" mounted 2>>words || cannot "$(tail -n 1 words)"; }
try() { # COMMAND…: it and `rm conf` are called; what conf has then
	rm -rf upper work
	mkdir upper work
	echo old >lower/conf
	"$kind" || cannot "no overlay"
	(cd mounted && "$@" && rm conf)
	cat mounted/conf 2>/dev/null || echo gone
	umount mounted
}
in_kernel() { mount -t overlay -o "$options" overlay mounted 2>>words; }
kind=in_kernel
expect "the kernel's overlay, sed -i" gone "$(try sed -i s/old/new/ conf)"
kind=mounts
expect "fuse-overlayfs, the file as it was" gone "$(try true)"
expect "fuse-overlayfs, appended to" gone "$(try sh -c 'echo new >>conf')"
expect "fuse-overlayfs, sed -i" old "$(try sed -i s/old/new/ conf)"
mounts
expect "the next mount" old "$(cat mounted/conf)"
rm mounted/conf
expect "a second rm" "" "$(ls mounted)"
