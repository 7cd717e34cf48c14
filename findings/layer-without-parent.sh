#!/usr/bin/env bash
# A layer has tmp/file and lib/file, but no entries for tmp and lib: tools that make layers of lists of files write
# such ones. In the layer below tmp has mode 1777, and lib is a link to usr/lib.
#
# One would guess: the files are put where these paths lead: tmp keeps its mode, lib stays a link, and the file is in
# usr/lib. In any case buildah makes the same tree of an image, whatever its storage driver.
# What happens: so with the driver vfs and with umoci. With overlay, tmp has mode 755, so that users cannot write there,
# and lib is a directory with this one file: all other libraries are gone from /lib, and no program starts. The
# driver unpacks each layer by itself, and the directory that it makes hides the one below.
# Seen with buildah 1.28.2 and umoci 0.4.7 of Debian 12. Needs root.
#
#   umoci, vfs: tmp 1777, lib -> usr/lib, usr/lib/file     overlay: tmp 755, lib a directory, lib/file
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs buildah=1.28.2+ds1-3+deb12u1+b3 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 libgpg-error0=1.46-1 \
	libdevmapper1.02.1=2:1.02.185-2 libseccomp2=2.5.4-1+deb12u1 umoci=0.4.7+ds-3+b7
mkdir -p one/tmp one/usr/lib two/tmp two/lib tmp
chmod 1777 one/tmp
ln -s usr/lib one/lib
touch two/tmp/file two/lib/file
tar -C one -cf one.tar tmp usr lib
tar -C two -cf two.tar tmp/file lib/file
umoci init --layout image
umoci new --image image:tag
umoci raw add-layer --image image:tag one.tar
umoci raw add-layer --image image:tag two.tar
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
export TMPDIR=$place/tmp
build() { # DRIVER COMMAND ARGUMENT…
	buildah --root "$place/$1" --runroot "$place/run" --storage-driver "$@"
}
on_exit+=("build overlay umount --all >>words 2>&1; umount overlay/overlay 2>>words")
seen() { # TREE: the mode of tmp, and the kinds of lib and file
	(cd "$1" && stat -c '%a' tmp && find . '(' -name lib -o -name file ')' -printf '%P %y\n' | sort) | paste -sd,
}
tree() { build "$1" mount "$(build "$1" from --quiet --signature-policy policy.json oci:image:tag)"; }
umoci unpack --image image:tag bundle
expect umoci "1777,lib l,tmp/file f,usr/lib d,usr/lib/file f" "$(seen bundle/rootfs)"
expect vfs "1777,lib l,tmp/file f,usr/lib d,usr/lib/file f" "$(seen "$(tree vfs)")"
expect overlay "755,lib d,lib/file f,tmp/file f,usr/lib d" "$(seen "$(tree overlay)")"
