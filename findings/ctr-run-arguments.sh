#!/usr/bin/env bash
# ctr, the client that comes with containerd, runs an image that has an ENTRYPOINT, with words for it:
# ctr run --rm IMAGE ID hello.
#
# One would guess: the words take the place of CMD and the entrypoint stays, as with docker, podman, nerdctl and
# Kubernetes' args.
# What happens: they take the place of both, so "hello" is the program. Without words both are used. So an entrypoint
# that sets things up, or is tini, is passed over without a word wherever the words happen to name a program.
# Seen with containerd 1.6.20, runc 1.1.5 and umoci 0.4.7 of Debian 12. Needs root.
#
#   ENTRYPOINT echo from, CMD image: no words: from image     hello: executable file not found    busybox id: uid=0
. "$(dirname "$0")/common.bash" || exit 2
. "$here/containerd.bash"
containerd_daemon umoci=0.4.7+ds-3+b7 runc=1.1.5+ds1-1+deb12u1 libseccomp2=2.5.4-1+deb12u1 \
	busybox-static=1:1.35.0-4+deb12u1+b1
umoci init --layout image
umoci new --image image:tag
umoci insert --image image:tag root/bin/busybox /bin/busybox
umoci config --image image:tag --config.entrypoint /bin/busybox --config.entrypoint echo --config.entrypoint from \
	--config.cmd image --config.env PATH=/bin
tar -C image -cf archive.tar .
ask image import --snapshotter native --base-name name archive.tar >>words
runs() { ask run --rm --snapshotter native --cgroup "" name:tag "$@" </dev/null || true; }
expect "no words" "from image" "$(runs one)"
expect "hello" "" "$(runs two hello)"
expect "why" '"hello": executable file not found' "$(grep -o '"hello": executable file not found' words)"
expect "busybox id" "uid=0 gid=0" "$(runs three busybox id | grep -o 'uid=0 gid=0')"
