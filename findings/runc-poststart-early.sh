#!/usr/bin/env bash
# When a poststart hook runs.
#
# One would guess: in `start`, after the program has begun, as the specification and the name say, so a hook
# can wait for something that the program does.
# What happens: so with crun. runc runs it in `create`, when the program is not even asked for, and not in
# `start`. The state that the hook reads says "created", and what the program makes is not there yet.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   after create: crun: no hook, runc: created     after start: crun: running, runc: created
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<END
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/sleep", "60"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "hooks": {"poststart": [{"path": "/bin/sh", "args": ["sh", "-c", "cat >>$place/states"]}]},
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
seen() { grep -o '"status": *"[a-z]*"' states | cut -d'"' -f4 | xargs; }
for runtime in crun runc; do
	: >states
	on_exit+=("$runtime delete --force finding-$$")
	"$runtime" create --bundle bundle finding-$$ </dev/null >/dev/null 2>&1
	expect "$runtime, after create" "$([[ $runtime == crun ]] || echo created)" "$(seen)"
	"$runtime" start finding-$$
	expect "$runtime, after start" "$([[ $runtime == crun ]] && echo running || echo created)" "$(seen)"
	"$runtime" delete --force finding-$$
done
