#!/usr/bin/env bash
# A layer deletes a directory of the layer below (.wh.cache) and makes a new one of the same name, or has the mark
# .wh..wh..opq in its root: nothing of the layers below is to be seen. Marks are for the layers below alone, says the
# image specification, and not for what their own layer has.
#
# One would guess: what was deleted is gone, as after umoci unpack. In any case buildah makes the same tree of an image,
# whatever its storage driver.
# What happens: so with the driver vfs. With overlay the old files are back, beside the new ones: the new
# directory takes the place of the mark that hides the old one, and nothing says that it is not to be merged with
# it. In the root the mark has no effect. A tool that flattens or rewrites layers has to delete file by file, or put
# .wh..wh..opq in the directory.
# Seen with buildah 1.28.2 and umoci 0.4.7 of Debian 12. Needs root.
#
#   cache/old; .wh.cache cache/new:       umoci, vfs: new     overlay: new old
#   cache/old; .wh..wh..opq cache/new:    umoci, vfs: new     overlay: new old
#   cache/old; cache/.wh..wh..opq cache/new: all three: new
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs buildah=1.28.2+ds1-3+deb12u1+b3 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 libgpg-error0=1.46-1 \
	libdevmapper1.02.1=2:1.02.185-2 libseccomp2=2.5.4-1+deb12u1 umoci=0.4.7+ds-3+b7
mkdir -p one/cache two/cache tmp
touch one/cache/old two/cache/{new,.wh..wh..opq} two/{.wh.cache,.wh..wh..opq}
tar -C one -cf one.tar cache
umoci init --layout image
image() { # NAME PATH…: an image whose second layer has these paths
	tar -C two --no-recursion -cf two.tar "${@:2}"
	umoci new --image "image:$1"
	umoci raw add-layer --image "image:$1" one.tar
	umoci raw add-layer --image "image:$1" two.tar
}
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
export TMPDIR=$place/tmp
build() { # DRIVER COMMAND ARGUMENT…
	buildah --root "$place/$1" --runroot "$place/run" --storage-driver "$@"
}
on_exit+=("build overlay umount --all >>words 2>&1; umount overlay/overlay 2>>words")
try() { # IMAGE EXPECTED-WITH-OVERLAY
	local driver container
	umoci unpack --image "image:$1" "$1"
	expect "$1, umoci" new "$(ls "$1/rootfs/cache" | xargs)"
	for driver in vfs overlay; do
		container=$(build "$driver" from --quiet --signature-policy policy.json "oci:image:$1")
		[[ $driver == vfs ]] && expected=new || expected=$2
		expect "$1, $driver" "$expected" "$(ls "$(build "$driver" mount "$container")/cache" | xargs)"
	done
}
image again .wh.cache cache cache/new
image root .wh..wh..opq cache cache/new
image directory cache cache/.wh..wh..opq cache/new
try again "new old"
try root "new old"
try directory new
