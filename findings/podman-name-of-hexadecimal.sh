#!/usr/bin/env bash
# A script makes its container anew, called "db", or a name like it: podman rm --force --ignore db; or asks first:
# podman container exists db.
#
# One would guess: where no container has that name nothing is removed, and "exists" is false. An ID may be cut short
# on a command line, but a name like this is meant as one, and `exists` "checks if a container with that name or ID
# exists".
# What happens: one ID in 256 begins with "db", too. If another container has it, it exists, and is removed. With
# twenty containers that happens to one script in thirteen; ada, cafe, b2 or f1 are such names too.
# Seen with podman 4.3.1 of Debian 12. Needs root.
#
#   a container "web"; the first two digits of its ID as a name: exists 0, rm --force --ignore removes "web"
. "$(dirname "$0")/common.bash" || exit 2
. "$here/podman.bash"
podman_engine
mkdir files
id=$(engine create --name web --network none --rootfs "$place/files" true) || cannot "$(tail -n 1 words)"
name=${id:0:2}
expect "exists" 0 "$(engine container exists "$name" && echo 0 || echo $?)"
expect "exists, another name" 1 "$(engine container exists zz && echo 0 || echo $?)"
expect "before" web "$(engine ps --all --format '{{.Names}}')"
engine rm --force --ignore "$name" >>words
expect "after rm --force --ignore" "" "$(engine ps --all --format '{{.Names}}')"
