#!/usr/bin/env bash
# config.json for root without process.capabilities, which is optional.
#
# One would guess: they stay as they are: root has those of whoever calls the runtime, all of them, as it has
# its limits when config.json says nothing of those.
# What happens: root has none at all, not even in the bounding set. It cannot chown, cannot read a file
# of somebody else's with mode 600, and nothing in the container can get that back.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   CapEff: 0000000000000000   CapBnd: 0000000000000000 (both)
#   chown: Operation not permitted (both)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
for name in grep chown; do ln -s busybox "bundle/rootfs/bin/$name"; done
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
             "args": ["/bin/sh", "-c", "grep -E 'Cap(Eff|Bnd)' /proc/self/status; chown 5 /mnt 2>&1"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
none=0000000000000000
for runtime in crun runc; do
	expect "root with $runtime" "CapEff: $none CapBnd: $none chown: /mnt: Operation not permitted" \
		"$("$runtime" run --bundle bundle finding-$$ | xargs)"
done
