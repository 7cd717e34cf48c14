#!/usr/bin/env bash
# A hook of config.json fails and says why on standard error.
#
# One would guess: its words are on the runtime's standard error, which it would inherit, or in its error.
# What happens: so with runc, which quotes them. crun gives hooks /dev/null for standard output and error:
# one learns the status and never the reason. What the hook wrote must go to a file of its own.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   crun: error executing hook `/bin/sh` (exit code: 3)
#   runc: … error running hook: exit status 3, stdout: , stderr: no such disk
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<END
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "hooks": {"createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c",
             "cat >/dev/null; readlink /proc/self/fd/2 >$place/fd; echo no such disk >&2; exit 3"]}]},
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
crun run --bundle bundle finding-$$ </dev/null >out 2>&1 || true
expect "error of crun" 'error executing hook `/bin/sh` (exit code: 3)' "$(cat out)"
expect "standard error of its hook" /dev/null "$(cat fd)"
runc run --bundle bundle finding-$$ </dev/null >out 2>&1 || true
expect "error of runc" "exit status 3, stdout: , stderr: no such disk" \
	"$(grep -o 'exit status 3, stdout: , stderr: no such disk' out)"
