#!/usr/bin/env bash
# A createRuntime hook fails, so there is no container. config.json has a poststop hook, which undoes what
# the hooks before it have done.
#
# One would guess: the poststop hook runs, as it does after every container's end.
# What happens: so with runc. crun takes everything back and does not run the poststop hook, so whatever
# an earlier hook has mounted or reserved stays.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   first hook takes, second hook fails.    crun: taken    runc: taken, given back
. "$(dirname "$0")/common.bash" || exit 2
runtimes
hook() { printf '{"path": "/bin/sh", "args": ["sh", "-c", "cat >/dev/null; %s"]}' "$1"; }
cat >bundle/config.json <<END
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "hooks": {"createRuntime": [$(hook "echo taken >>$place/seen"), $(hook "exit 3")],
           "poststop": [$(hook "echo given back >>$place/seen")]},
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
try() { # RUNTIME
	local status=0
	rm -f seen
	"$1" create --bundle bundle finding-$$ </dev/null >out 2>&1 || status=$?
	[[ $status != 0 ]] || cannot "the container was created"
	xargs -d'\n' <seen
}
expect "hooks with crun" "taken" "$(try crun)"
expect "hooks with runc" "taken given back" "$(try runc)"
