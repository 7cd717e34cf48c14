#!/usr/bin/env bash
# An image for two architectures is in a registry (Debian's docker-registry, "distribution"): a tag that names an index.
# Space is got back as its documentation says: registry garbage-collect --delete-untagged.
#
# One would guess: what no tag leads to goes. Tag 1 leads to the index and that to the images of the two architectures.
# What happens: the index stays, with its tag; the manifests that it names go, as they have no tags of their own, and
# with them all layers. Status 0, the tag is still listed, and the image cannot be pulled for any architecture.
# Seen with docker-registry 2.8.2, skopeo 1.9.3 and umoci 0.4.7 of Debian 12.
#
#   before: both pulled       afterwards: the tag is there, "manifest unknown" for both
. "$(dirname "$0")/common.bash" || exit 2
debs docker-registry=2.8.2+ds1-1 skopeo=1.9.3+ds1-1+b10 umoci=0.4.7+ds-3+b7 libgpgme11=1.18.0-3+deb12u1 \
	libassuan0=2.5.5-5 libdevmapper1.02.1=2:1.02.185-2
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
registry=127.0.0.1:$((20000 + RANDOM % 9000))
cat >registry.yml <<-END
	version: 0.1
	storage: {filesystem: {rootdirectory: $place/kept}, delete: {enabled: true}}
	http: {addr: $registry}
	log: {level: error}
END
umoci init --layout image
for architecture in amd64 arm64; do
	umoci new --image "image:$architecture"
	umoci config --image "image:$architecture" --architecture "$architecture"
	mkdir "$architecture"
	umoci insert --image "image:$architecture" "$architecture" /files
done
python3 - <<-'END'
	import hashlib, json

	layout = json.load(open("image/index.json"))
	images = []
	for image in layout["manifests"]:
	    name = image.pop("annotations")["org.opencontainers.image.ref.name"]
	    images.append(image | {"platform": {"os": "linux", "architecture": name}})
	kind = "application/vnd.oci.image.index.v1+json"
	index = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": images}).encode()
	digest = hashlib.sha256(index).hexdigest()
	open(f"image/blobs/sha256/{digest}", "wb").write(index)
	tag = {"org.opencontainers.image.ref.name": "both"}
	entry = {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(index), "annotations": tag}
	json.dump(layout | {"manifests": [entry]}, open("image/index.json", "w"))
END
server=
on_exit+=('kill $server')
serve() {
	local try
	docker-registry serve registry.yml >log 2>&1 &
	server=$!
	for ((try = 0; try < 100; try++)); do
		! curl -sf "http://$registry/v2/" >/dev/null || return 0
		sleep 0.1
	done
	cannot "the registry does not start: $(tail -n 1 log)"
}
copy() { skopeo --policy policy.json "$@" 2>>words; }
pulled() {
	local architecture
	for architecture in amd64 arm64; do
		copy --override-arch "$architecture" copy -q --src-tls-verify=false "docker://$registry/app:1" \
			"dir:$place/pulled" && echo "$architecture" || echo "no"
	done | xargs
}
serve
copy copy -q --all --dest-tls-verify=false oci:image:both "docker://$registry/app:1"
expect "before" "amd64 arm64" "$(pulled)"
kill "$server"
wait "$server" || true
server=
status=0
docker-registry garbage-collect --delete-untagged registry.yml >log 2>&1 || status=$?
expect "status" 0 "$status"
serve
expect "tags" '{"name":"app","tags":["1"]}' "$(curl -s "http://$registry/v2/app/tags/list")"
expect "afterwards" "no no" "$(pulled)"
expect "words" 2 "$(grep -c 'manifest unknown' words)"
