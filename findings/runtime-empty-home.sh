#!/usr/bin/env bash
# HOME is set in process.env, but empty.
#
# One would guess: it is set, so it stays as it is; only a HOME that is missing is filled in.
# What happens: so with crun; runc takes an empty HOME for a missing one and fills it in.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   crun: HOME=
#   runc: HOME=/
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/sh", "-c", "echo HOME=$HOME"],
             "env": ["PATH=/bin", "HOME="]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
expect "with crun" "HOME=" "$(crun run --bundle bundle finding-$$)"
expect "with runc" "HOME=/" "$(runc run --bundle bundle finding-$$)"
