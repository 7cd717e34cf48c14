#!/usr/bin/env bash
# A container is started in a network namespace that was made before: `ip netns exec NAME runc run …`.
#
# One would guess: only the network is another one. The manual page says that ip also mounts the files of
# /etc/netns/NAME, and no more; `nsenter --net` changes nothing else.
# What happens: ip mounts a new sysfs on /sys, and with it what is mounted below is gone: /sys/fs/cgroup is empty. crun
# and runc refuse every container, with words that point at the machine's cgroups. `nsenter --net=/run/netns/NAME`
# has both the network and the cgroups.
# Seen with iproute2 6.1.0, crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   runc: status 1     crun: invalid file system type on '/sys/fs/cgroup'     with nsenter --net: both run
. "$(dirname "$0")/common.bash" || exit 2
runtimes
debs iproute2=6.1.0-3 libbpf1=1:1.1.2-0+deb12u1 libelf1=0.188-2.1 libmnl0=1.0.4-3 libtirpc3=1.3.3+ds-1 \
	libxtables12=1.8.9-2
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"], "args": ["/bin/sh", "-c", "echo runs"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
name=finding-$$
ip netns add "$name"
on_exit+=("ip netns delete '$name'")
through() { # NAMESPACE-PROGRAM…: how crun and runc end that are called by it, and their words
	local runtime status
	for runtime in crun runc; do
		# crun sees nothing but cgroup v2, as in common.bash.
		status=0
		unshare --mount sh -c 'mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"' sh "$@" \
			"$(type -P "$runtime")" --root "$place/state" run --bundle bundle "$name" >"$runtime.words" 2>&1 || status=$?
		echo "$runtime $status"
	done | xargs
}
expect "ip netns exec: /sys/fs/cgroup" "" "$(ip netns exec "$name" ls /sys/fs/cgroup)"
expect "ip netns exec" "crun 1 runc 1" "$(through ip netns exec "$name")"
expect "crun's words" "invalid file system type on '/sys/fs/cgroup'" "$(sed 's/.*: //' crun.words)"
expect "nsenter --net" "crun 0 runc 0" "$(through nsenter --net="/run/netns/$name")"
expect "crun's words" runs "$(cat crun.words)"
expect "runc's words" runs "$(cat runc.words)"
