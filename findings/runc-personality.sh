#!/usr/bin/env bash
# config.json asks for a 32-bit personality: "linux": {"personality": {"domain": "LINUX32"}}.
#
# One would guess: `uname -m` in the container says i686, as after setarch i386; or a runtime that does not
# know this part of the specification says so and refuses.
# What happens: so with crun. runc 1.1 passes over it without a word, so that configure scripts and
# package managers in a 32-bit image take the machine for x86_64.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   crun: i686    runc: x86_64, status 0
. "$(dirname "$0")/common.bash" || exit 2
runtimes
ln -s busybox bundle/rootfs/bin/uname
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/uname", "-m"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"personality": {"domain": "LINUX32"}, "namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
expect "machine with crun" i686 "$(crun run --bundle bundle finding-$$)"
expect "machine with runc" x86_64 "$(runc run --bundle bundle finding-$$ 2>&1)"
