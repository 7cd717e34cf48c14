#!/usr/bin/env bash
# A layer that `git archive` has written: files of a commit, added to an image with `umoci raw add-layer`.
#
# One would guess: it is a tar archive like any other, and umoci, which has taken it, can unpack it, as buildah can.
# What happens: it begins with a header that is for the whole archive and has the commit's number as a comment.
# umoci takes that for a file of an unknown kind, and the image can never be unpacked. `git archive` of a tree instead
# of a commit (HEAD^{tree}) writes no such header.
# Seen with umoci 0.4.7, git 2.39.5 and buildah 1.28.2 of Debian 12. Needs root.
#
#   git archive HEAD: buildah: file     umoci: unknown typeflag '\x67'     git archive HEAD^{tree}: umoci: file
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs buildah=1.28.2+ds1-3+deb12u1+b3 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 libgpg-error0=1.46-1 \
	libdevmapper1.02.1=2:1.02.185-2 libseccomp2=2.5.4-1+deb12u1 umoci=0.4.7+ds-3+b7 \
	git=1:2.39.5-0+deb12u3
export GIT_EXEC_PATH=$place/root/usr/lib/git-core GIT_TEMPLATE_DIR=$place/root/usr/share/git-core/templates
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
mkdir tmp
export TMPDIR=$place/tmp
git init -q repository
echo content >repository/file
git -C repository add file
git -C repository -c user.name=name -c user.email=name@example.org commit -q -m commit
umoci init --layout image
image() { # NAME TREE-ISH: an image of what git archives
	git -C repository archive --output="$place/layer.tar" "$2"
	umoci new --image "image:$1"
	umoci raw add-layer --image "image:$1" layer.tar
}
image commit HEAD
image tree 'HEAD^{tree}'
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
build() { buildah --root "$place/kept" --runroot "$place/run" --storage-driver vfs "$@"; }
container=$(build from --quiet --signature-policy policy.json oci:image:commit)
expect "commit, buildah" file "$(ls "$(build mount "$container")")"
umoci unpack --image image:commit commit >words 2>&1 && exit 1
expect "commit, umoci" "unknown typeflag '\\x67'" "$(sed -n '$s/.*: //p' words)"
umoci unpack --image image:tree tree
expect "tree, umoci" file "$(ls tree/rootfs)"
