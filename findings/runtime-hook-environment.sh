#!/usr/bin/env bash
# The environment of a hook that config.json gives no `env`.
#
# One would guess: it is empty. What a hook gets is in config.json, as with the container's process.
# What happens: crun and runc hand on all that whoever called the runtime has in the environment. The
# poststop hook of a container therefore sees the variables of who deletes it, not of who made it.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   CALLER=deletes (both), although `create` and `start` were called with CALLER=creates
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<END
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "hooks": {"poststop": [{"path": "/bin/sh",
                         "args": ["sh", "-c", "cat >/dev/null; echo CALLER=\$CALLER >$place/seen"]}]},
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
for runtime in crun runc; do
	CALLER=creates "$runtime" create --bundle bundle finding-$$ </dev/null >/dev/null
	CALLER=creates "$runtime" start finding-$$
	CALLER=deletes "$runtime" delete --force finding-$$
	expect "hook of $runtime" CALLER=deletes "$(cat seen)"
	rm seen
done
