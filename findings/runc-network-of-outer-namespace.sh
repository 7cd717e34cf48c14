#!/usr/bin/env bash
# Root of a user namespace, as of a rootless engine's, calls a runtime there. config.json names the user namespace of
# another container, which is below that one, and a network namespace that belongs to the outer one.
#
# One would guess: the container is in both, for whoever calls the runtime has all rights in both.
# What happens: so with crun. runc enters the user namespace first, whose root has no right to the network of an outer
# one: `create` fails, and its error is about a pid. The reason is on standard error only.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   crun: the network    runc: can't get final child's PID from pipe: EOF
. "$(dirname "$0")/common.bash" || exit 2
runtimes
ln -s busybox bundle/rootfs/bin/readlink

unshare --user --net sleep 60 &
outer=$!
on_exit+=("kill $outer 2>/dev/null")
until [[ $(readlink /proc/$outer/ns/net) != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.05; done
echo '0 0 65536' >/proc/$outer/uid_map
echo '0 0 65536' >/proc/$outer/gid_map
within() { nsenter --target "$outer" --user "$@"; }
within unshare --user sh -c 'echo $$ >inner; exec sleep 60' &
until [[ -s inner ]]; do sleep 0.05; done
inner=$(<inner)
on_exit+=("kill $inner")
# only somebody in the outer namespace may write these
within sh -c "echo 0 1 1000 >/proc/$inner/uid_map; echo 0 1 1000 >/proc/$inner/gid_map"

map='[{"containerID": 0, "hostID": 1, "size": 1000}]'
cat >bundle/config.json <<END_OF_CONFIG
{"ociVersion": "1.0.2", "root": {"path": "rootfs", "readonly": true},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/readlink", "/proc/self/ns/net"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}],
 "linux": {"uidMappings": $map, "gidMappings": $map,
           "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "user", "path": "/proc/$inner/ns/user"},
                          {"type": "network", "path": "/proc/$outer/ns/net"}]}}
END_OF_CONFIG
chmod 755 "$place"
as_root_there() { # COMMAND…
	within unshare --mount "$@" run --bundle bundle finding-$$ 2>&1
}
without_cgroups=(sh -c 'mount -t tmpfs none /sys/fs/cgroup; exec "$@"' sh) # crun refuses two versions of them
crun=("$place/root/usr/bin/crun" --root "$place/crun" --cgroup-manager disabled)
runc=("$place/root/usr/sbin/runc" --root "$place/runc" --rootless=true)
expect "crun" "$(readlink /proc/$outer/ns/net)" "$(as_root_there "${without_cgroups[@]}" "${crun[@]}")"
said=$(as_root_there "${runc[@]}") && cannot "runc has made it"
expect "runc" "can't get final child's PID from pipe: EOF" "$(grep -o "can't get.*EOF" <<<"$said")"
