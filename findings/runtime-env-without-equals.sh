#!/usr/bin/env bash
# An entry of process.env without "=" (images may have one: Env is a list of any strings).
#
# One would guess: both runtimes pass the entry on as it is, as execve(2) would.
# What happens: crun leaves it out without a word; runc does not start the container at all.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   crun: PATH=/bin A=1 HOME=/           (status 0)
#   runc: invalid environment variable: "NOEQUALS"    (status 1)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/env"],
             "env": ["PATH=/bin", "NOEQUALS", "A=1"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
expect "environment with crun" "PATH=/bin A=1 HOME=/" \
	"$(crun run --bundle bundle finding-$$ | xargs)"
status=0
runc run --bundle bundle finding-$$ >out 2>&1 || status=$?
expect "status of runc" 1 "$status"
expect "words of runc" 'invalid environment variable: \"NOEQUALS\"' \
	"$(grep -o 'invalid environment variable: \\"NOEQUALS\\"' out)"
