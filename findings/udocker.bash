# A container of udocker 1.3.17, of an image that umoci 0.4.7 of Debian 12 makes of layers.
udocker_container() { # LAYER.tar…, the lowest one first; goes to the container's root directory
	debs umoci=0.4.7+ds-3+b7
	mkdir home
	umoci init --layout image
	umoci new --image image:1
	local layer
	for layer; do umoci raw add-layer --image image:1 "$layer"; done
	tar -C image -cf image.tar index.json oci-layout blobs
	unset LD_LIBRARY_PATH
	pips udocker==1.3.17
	# What udocker would fetch, tools to run containers, is not needed to make one.
	export HOME=$place/home UDOCKER_TARBALL=$place/none
	udocker load -i image.tar app || cannot "udocker cannot load the image: $(tail -n 1 words)"
	udocker create --name=box app:1 || cannot "udocker cannot make a container: $(tail -n 1 words)"
	cd home/.udocker/containers/*-*/ROOT
}
udocker() { "$place/venv/bin/udocker" --allow-root "$@" >>words 2>&1; }
