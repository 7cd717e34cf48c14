#!/usr/bin/env bash
# An image is unpacked with umoci, a program runs in its root file system, and `umoci repack` makes a layer of what has
# changed. The program has left a socket there, as gpg-agent, a database and many services do.
#
# One would guess: the socket is left out, maybe with a word, as GNU tar leaves it out: a tar archive cannot hold one,
# and nobody misses it.
# What happens: umoci ends with an error, "archive/tar: sockets not supported", and there is no new layer: everything
# else that has changed is not in the image either. A pipe is no trouble.
# Seen with umoci 0.4.7 of Debian 12 and GNU tar 1.34. Needs root.
#
#   a file and a pipe: 0      and a socket: 1, no new tag      tar of the same tree: 0, "socket ignored"
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs umoci=0.4.7+ds-3+b7
mkdir layer
touch layer/old
tar -C layer -cf layer.tar old
umoci init --layout image
umoci new --image image:1
umoci raw add-layer --image image:1 layer.tar
umoci unpack --image image:1 bundle
touch bundle/rootfs/new
mkfifo bundle/rootfs/pipe
repack() { umoci repack --image "image:$1" bundle >words 2>&1 && echo 0 || echo $?; }
expect "a file and a pipe" 0 "$(repack 2)"
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("bundle/rootfs/socket")'
expect "a socket" 1 "$(repack 3)"
expect "its words" 1 "$(grep -c 'add diff layer.*sockets not supported' words)"
expect "tags" "1 2" "$(umoci list --layout image | sort | xargs)"
tar -C bundle/rootfs -cf tree.tar . 2>words
expect "tar" "tar: ./socket: socket ignored" "$(cat words)"
