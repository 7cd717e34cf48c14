#!/usr/bin/env bash
# A tmpfs of config.json without `source`, which is optional.
#
# One would guess: it is as good as any other in the container's table of mounts.
# What happens: runc mounts it with an empty source. Its line of /proc/mounts begins with a space,
# so who splits the line at spaces, as mount of busybox does, has all fields one place too early.
# crun gives it the type as source.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   crun: tmpfs on /mnt type tmpfs (rw,relatime)
#   runc: /mnt on tmpfs type rw,relatime (0)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
ln -s busybox bundle/rootfs/bin/mount
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/mount"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/mnt", "type": "tmpfs"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
expect "mounts with crun" "tmpfs on /mnt type tmpfs (rw,relatime)" \
	"$(crun run --bundle bundle finding-$$ | grep /mnt)"
expect "mounts with runc" "/mnt on tmpfs type rw,relatime (0)" \
	"$(runc run --bundle bundle finding-$$ | grep /mnt)"
