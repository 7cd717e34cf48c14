#!/usr/bin/env bash
# A container of podman has a tmpfs, and podman writes it down for Kubernetes, or for itself elsewhere: podman create
# --tmpfs /scratch:size=1m, or --read-only, which puts one at /tmp, /run and /var/tmp; podman generate kube.
#
# One would guess: a volume emptyDir with "medium: Memory" and its sizeLimit, what Kubernetes has for a tmpfs; or an
# error, as for a device ("not yet implemented").
# What happens: status 0 and a volume hostPath with the path "tmpfs": a directory of the node, to be made if it is
# missing, relative, without the limit, and one for all of these mounts. So what was to go with the container stays on
# the node, and a file of /tmp is in /run too.
# Seen with podman 4.3.1 of Debian 12. Needs root.
#
#   --tmpfs /scratch --read-only: four volumes, each {path: tmpfs, type: DirectoryOrCreate}, no emptyDir
. "$(dirname "$0")/common.bash" || exit 2
. "$here/podman.bash"
podman_engine buildah=1.28.2+ds1-3+deb12u1+b3
image image 'COPY file /' 'CMD ["true"]'
engine create --name box --network none --tmpfs /scratch:size=1m --read-only image >>words
status=0
engine generate kube box >kube || status=$?
expect "status" 0 "$status"
expect "paths" "tmpfs tmpfs tmpfs tmpfs" "$(sed -n 's/^ *path: //p' kube | xargs)"
expect "types" "4 DirectoryOrCreate" "$(sed -n 's/^ *type: //p' kube | sort | uniq -c | xargs)"
expect "where" "/run /scratch /tmp /var/tmp" "$(sed -n 's/^ *- mountPath: //p' kube | sort | xargs)"
expect "emptyDir or a limit" 0 "$(grep -c 'emptyDir\|sizeLimit' kube || true)"
engine rm box >>words
