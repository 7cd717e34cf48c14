# podman 4.3.1 of Debian 12 in the temporary folder, by root, with storage of its own.
podman_engine() { # PACKAGE=VERSION…: more of them
	root_only
	debs podman=4.3.1+ds1-8+deb12u1+b3 conmon=2.1.6+ds1-1 crun=1.8.1-1+deb12u1 libyajl2=2.1.0-3+deb12u2 \
		libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 libgpg-error0=1.46-1 libsubid4=1:4.13+dfsg1-1+deb12u2 \
		libdevmapper1.02.1=2:1.02.185-2 libseccomp2=2.5.4-1+deb12u1 "$@"
	mkdir tmp
	cat >containers.conf <<-END
		[engine]
		cgroup_manager = "cgroupfs"
		events_logger = "none"
		runtime = "crun"
		conmon_path = ["$place/root/usr/bin/conmon"]
		[engine.runtimes]
		crun = ["$place/root/usr/bin/crun"]
		[network]
		network_backend = "cni"
		network_config_dir = "$place/networks"
	END
	export TMPDIR=$place/tmp CONTAINERS_CONF=$place/containers.conf
	storage=(--root "$place/kept" --runroot "$place/run" --storage-driver vfs)
}
engine() { podman "${storage[@]}" --tmpdir "$place/podman" "$@" 2>>words; }
image() { # NAME LINE…: make an image of these lines of a Dockerfile; `file` is there to be copied
	local name=$1
	shift
	mkdir -p context
	touch context/file
	printf '%s\n' 'FROM scratch' "$@" >context/Dockerfile
	echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
	echo 'unqualified-search-registries = []' >registries.conf
	export CONTAINERS_REGISTRIES_CONF=$place/registries.conf BUILDAH_ISOLATION=chroot
	buildah "${storage[@]}" build --quiet --signature-policy policy.json --tag "$name" context >words
}
