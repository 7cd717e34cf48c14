#!/usr/bin/env bash
# config.json has two poststop hooks, and the first one fails.
#
# One would guess: a warning, and the second hook runs. The runtime specification 1.0 says so.
# What happens: so with crun, which does not even warn. runc writes a line and leaves the others out, and
# `delete` has succeeded all the same, so nothing will call them later.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   crun: delete 0, second hook has run      runc: delete 0, it has not
. "$(dirname "$0")/common.bash" || exit 2
runtimes
hook() { printf '{"path": "/bin/sh", "args": ["sh", "-c", "cat >/dev/null; %s"]}' "$1"; }
cat >bundle/config.json <<END
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "hooks": {"poststop": [$(hook "exit 1"), $(hook "touch $place/second")]},
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
try() { # RUNTIME: the status of delete, and whether the second hook has run
	local status=0
	rm -f second
	"$1" create --bundle bundle finding-$$ </dev/null >/dev/null
	"$1" start finding-$$
	"$1" delete --force finding-$$ >out 2>&1 || status=$?
	echo "$status $([[ -e second ]] && echo run || echo left out)"
}
expect "with crun" "0 run" "$(try crun)"
expect "with runc" "0 left out" "$(try runc)"
