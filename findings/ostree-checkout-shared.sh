#!/usr/bin/env bash
# A tree is committed to a repository of ostree, as root, and checked out twice, for two containers: ostree checkout.
# Two files in it, passwd and passwd-, have the same content.
#
# One would guess: copies, as of `git worktree` and `umoci unpack`; or, if data is shared, writing makes a copy of its
# own.
# What happens: all files are hard links to the repository's. Who writes to one (echo >>, a program that keeps a log)
# writes to the other checkout, to the repository, which fsck finds corrupted from then on, and to passwd-, for files
# that are equal are one. All have the time 0, 1970. `checkout --force-copy` makes copies.
# Seen with ostree 2022.7 of Debian 12. Needs root.
#
#   echo changed >one/passwd: "changed" in one/passwd-, two/passwd, two/passwd-; ostree fsck: 1
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs ostree=2022.7-2+deb12u1 libostree-1-1=2022.7-2+deb12u1 libavahi-glib1=0.8-10+deb12u1 \
	libavahi-common3=0.8-10+deb12u1 libavahi-client3=0.8-10+deb12u1 libarchive13=3.6.2-1+deb12u5 \
	libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5
mkdir tree
echo same | tee tree/passwd >tree/passwd-
ostree --repo=repo init --mode=bare
ostree --repo=repo commit --branch=tree --subject=one tree >commit
ostree --repo=repo checkout tree one
ostree --repo=repo checkout tree two
ostree --repo=repo checkout --force-copy tree copy
ostree --repo=repo fsck >words 2>&1
expect "times" "0 0" "$(stat -c %Y one/passwd one/passwd- | xargs)"
echo changed >one/passwd
expect "the other name" changed "$(cat one/passwd-)"
expect "the other checkout" changed "$(cat two/passwd)"
expect "with --force-copy" same "$(cat copy/passwd)"
status=0
ostree --repo=repo fsck >words 2>&1 || status=$?
expect "fsck" "1 Corrupted file object" "$status $(grep -o 'Corrupted file object' words)"
