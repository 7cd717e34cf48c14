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
root_only
debs podman=4.3.1+ds1-8+deb12u1+b3 conmon=2.1.6+ds1-1 crun=1.8.1-1+deb12u1 libyajl2=2.1.0-3+deb12u2 \
	libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 libgpg-error0=1.46-1 libsubid4=1:4.13+dfsg1-1+deb12u2 \
	libdevmapper1.02.1=2:1.02.185-2 libseccomp2=2.5.4-1+deb12u1
mkdir -p files tmp
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
engine() {
	podman --root "$place/kept" --runroot "$place/run" --storage-driver vfs --tmpdir "$place/podman" "$@" 2>>words
}
id=$(engine create --name web --network none --rootfs "$place/files" true) || cannot "$(tail -n 1 words)"
name=${id:0:2}
expect "exists" 0 "$(engine container exists "$name" && echo 0 || echo $?)"
expect "exists, another name" 1 "$(engine container exists zz && echo 0 || echo $?)"
expect "before" web "$(engine ps --all --format '{{.Names}}')"
engine rm --force --ignore "$name" >>words
expect "after rm --force --ignore" "" "$(engine ps --all --format '{{.Names}}')"
