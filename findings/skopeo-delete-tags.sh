#!/usr/bin/env bash
# An image in a registry has two tags, 1 and latest, and the older name is taken away:
# skopeo delete docker://REGISTRY/NAME:1.
#
# One would guess: the tag 1 is gone, and latest still names the image, as after `docker rmi NAME:1`, `podman rmi`,
# `git tag -d` or `umoci rm --image`.
# What happens: skopeo asks what manifest the tag names and has that deleted, and with it goes every tag that names it:
# latest is "manifest unknown". Status 0, no word.
# Seen with skopeo 1.9.3, umoci 0.4.7 and docker-registry 2.8.2 of Debian 12.
#
#   tags before: 1 latest      after `skopeo delete …:1`: none
. "$(dirname "$0")/common.bash" || exit 2
debs skopeo=1.9.3+ds1-1+b10 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 libdevmapper1.02.1=2:1.02.185-2 \
	docker-registry=2.8.2+ds1-1 umoci=0.4.7+ds-3+b7 jq=1.6-2.1+deb12u3 libjq1=1.6-2.1+deb12u3 libonig5=6.9.8-1
port=$((20000 + RANDOM % 9000))
cat >registry.yml <<END
version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: $place/store}, delete: {enabled: true}}
http: {addr: "127.0.0.1:$port"}
END
docker-registry serve registry.yml >words 2>&1 &
on_exit+=("kill $!")
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
umoci init --layout image
umoci new --image image:tag
ours() { skopeo --policy policy.json "$@"; }
for ((try = 0; try < 100; try++)); do
	! ours copy -q --dest-tls-verify=false oci:image:tag "docker://127.0.0.1:$port/name:1" 2>>tries || break
	sleep 0.1
done
ours copy -q --dest-tls-verify=false oci:image:tag "docker://127.0.0.1:$port/name:latest"
tags() { ours list-tags --tls-verify=false "docker://127.0.0.1:$port/name" | jq -c '.Tags | sort'; }
expect "before" '["1","latest"]' "$(tags)"
status=0
ours delete --tls-verify=false "docker://127.0.0.1:$port/name:1" || status=$?
expect "after" '0 []' "$status $(tags)"
