#!/usr/bin/env bash
# An image with files at a path that its configuration lists under Volumes, unpacked with umoci.
#
# One would guess: the bundle shows the files of the image there, as `podman run` does.
# What happens: umoci puts an empty tmpfs for each volume into config.json. The files are in rootfs,
# and no container of that bundle sees them.
# Seen with umoci 0.4.7 of Debian 12.
#
#   rootfs/data/file exists, and the last mount of config.json is tmpfs on /data
. "$(dirname "$0")/common.bash" || exit 2
debs umoci=0.4.7+ds-3+b7 jq=1.6-2.1+deb12u3 libjq1=1.6-2.1+deb12u3 libonig5=6.9.8-1
mkdir data
echo here >data/file
umoci init --layout image
umoci new --image image:tag
umoci insert --rootless --image image:tag data /data
umoci config --image image:tag --config.volume /data
umoci unpack --rootless --image image:tag bundle
expect "file in rootfs" here "$(cat bundle/rootfs/data/file)"
expect "mount over it" '["/data","tmpfs","none"]' \
	"$(jq -c '.mounts[] | select(.destination == "/data") | [.destination, .type, .source]' bundle/config.json)"
