# What the scripts here share; each sources it first. It makes a temporary folder, goes there, and
# removes it at the end. A script ends with 0 if everything is as its header says, with 1 if that
# has changed, and with 2 if it could not be tried (no such version any more, not root).
set -euo pipefail
umask 022
export LC_ALL=C.UTF-8

cannot() { printf '%s: cannot be tried: %s\n' "${0##*/}" "$*" >&2; exit 2; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(mktemp -d)
on_exit=() # commands that undo what is more than files
leave() {
	local status=$? command
	for command in "${on_exit[@]}"; do eval "$command" || true; done
	rm -rf "$place"
	exit "$status"
}
trap leave EXIT
trap 'exit 2' INT TERM HUP
cd "$place"

root_only() { [[ $(id -u) == 0 ]] || cannot "it needs root"; }

debs() { # PACKAGE=VERSION…: unpack these packages of Debian here, and use what is in them
	mkdir -p debs root
	(cd debs && apt-get -qq -o APT::Sandbox::User="$(id -un)" download "$@") ||
		cannot "these packages are not to be had: $*"
	local deb libraries
	for deb in debs/*.deb; do dpkg-deb -x "$deb" root; done
	libraries=$(uname -m)-linux-gnu
	PATH=$place/root/usr/sbin:$place/root/usr/bin:$place/root/sbin:$place/root/bin:$PATH
	export PATH LD_LIBRARY_PATH=$place/root/usr/lib/$libraries:$place/root/lib/$libraries
}

pips() { # PACKAGE==VERSION…: install these packages of PyPI here; `python` has them
	{ python3 -m venv venv && venv/bin/pip -q --disable-pip-version-check install "$@"; } ||
		cannot "these packages are not to be had: $*"
	PATH=$place/venv/bin:$PATH
}

podman_compose() { # podman-compose 1.6.0, with a podman that only tells its version
	pips podman-compose==1.6.0
	mkdir bin
	printf '#!/bin/sh\necho podman version 4.9.3\n' >bin/podman
	chmod +x bin/podman
	PATH=$place/bin:$PATH
}

npms() { # PACKAGE@VERSION…: install these packages of npm here; a program in this folder has them
	npm --silent --no-audit --no-fund --prefix "$place" install "$@" >npm.out 2>&1 ||
		cannot "these packages are not to be had: $*"
}

expect() { # WHAT EXPECTED SEEN
	if [[ $2 != "$3" ]]; then
		printf '%s: %s\n  expected: %s\n  seen:     %s\n' "${0##*/}" "$1" "$2" "$3" >&2
		exit 1
	fi
	printf '%s: %s\n' "$1" "$3"
}

# crun and runc, and a bundle whose root file system is busybox. The script writes its config.json.
runtimes() {
	root_only
	debs crun=1.8.1-1+deb12u1 runc=1.1.5+ds1-1+deb12u1 libyajl2=2.1.0-3+deb12u2 \
		libseccomp2=2.5.4-1+deb12u1 busybox-static=1:1.35.0-4+deb12u1+b1
	mkdir -p bundle/rootfs/{bin,proc,dev,mnt}
	cp root/bin/busybox bundle/rootfs/bin/
	local name
	for name in sh env cat pwd sleep id stat true; do ln -s busybox "bundle/rootfs/bin/$name"; done
}

# crun sees nothing but cgroup v2, for it refuses to run where v1 is mounted beside it.
crun() {
	unshare --mount sh -c 'mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"' sh \
		"$place/root/usr/bin/crun" --root "$place/crun" --cgroup-manager disabled "$@"
}

runc() { "$place/root/usr/sbin/runc" --root "$place/runc" "$@"; }
