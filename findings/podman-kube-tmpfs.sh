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
root_only
debs podman=4.3.1+ds1-8+deb12u1+b3 conmon=2.1.6+ds1-1 crun=1.8.1-1+deb12u1 libyajl2=2.1.0-3+deb12u2 \
	buildah=1.28.2+ds1-3+deb12u1+b3 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 libgpg-error0=1.46-1 \
	libsubid4=1:4.13+dfsg1-1+deb12u2 libdevmapper1.02.1=2:1.02.185-2 libseccomp2=2.5.4-1+deb12u1
mkdir context tmp
touch context/file
printf 'FROM scratch\nCOPY file /\nCMD ["true"]\n' >context/Dockerfile
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
echo 'unqualified-search-registries = []' >registries.conf
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
export TMPDIR=$place/tmp CONTAINERS_CONF=$place/containers.conf CONTAINERS_REGISTRIES_CONF=$place/registries.conf \
	BUILDAH_ISOLATION=chroot
storage=(--root "$place/kept" --runroot "$place/run" --storage-driver vfs)
buildah "${storage[@]}" build --quiet --signature-policy policy.json --tag image context >words
engine() { podman "${storage[@]}" --tmpdir "$place/podman" "$@" 2>>words; }
engine create --name box --network none --tmpfs /scratch:size=1m --read-only image >>words
status=0
engine generate kube box >kube || status=$?
expect "status" 0 "$status"
expect "paths" "tmpfs tmpfs tmpfs tmpfs" "$(sed -n 's/^ *path: //p' kube | xargs)"
expect "types" "4 DirectoryOrCreate" "$(sed -n 's/^ *type: //p' kube | sort | uniq -c | xargs)"
expect "where" "/run /scratch /tmp /var/tmp" "$(sed -n 's/^ *- mountPath: //p' kube | sort | xargs)"
expect "emptyDir or a limit" 0 "$(grep -c 'emptyDir\|sizeLimit' kube || true)"
engine rm box >>words
