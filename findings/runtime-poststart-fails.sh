#!/usr/bin/env bash
# A poststart hook ends with a status other than 0.
#
# One would guess: a warning, and the container goes on. The runtime specification 1.0 says so.
# What happens: crun says nothing at all and goes on; runc ends the container.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   crun: the container's own status, 3; no line
#   runc: 1, "error running hook: exit status 1"
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
             "args": ["/bin/sh", "-c", "sleep 2; exit 3"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "hooks": {"poststart": [{"path": "/bin/sh", "args": ["sh", "-c", "cat >/dev/null; exit 1"]}]},
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
crun run --bundle bundle finding-$$ >out 2>&1 && seen=0 || seen=$?
expect "status with crun" 3 "$seen"
expect "words of crun" "" "$(cat out)"
runc run --bundle bundle finding-$$ >out 2>&1 && seen=0 || seen=$?
expect "status with runc" 1 "$seen"
expect "words of runc" "error running hook: exit status 1" \
	"$(grep -o 'error running hook: exit status 1' out)"
