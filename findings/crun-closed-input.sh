#!/usr/bin/env bash
# A program without standard input, closed as daemons and some job managers have it (`<&-`), starts a container.
#
# One would guess: it starts, as with runc, and as any program starts that does not read; or the runtime opens
# /dev/null in its place.
# What happens: crun ends with 1: "fchown std stream 0: Bad file descriptor", and there is no container.
# Seen with crun 1.8.1 (and, for comparison, runc 1.1.5) of Debian 12. Needs root.
#
#   run <&-: crun 1, runc 0
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END_OF_JSON'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": ["PATH=/bin"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END_OF_JSON
status() { "$1" run --bundle "$place/bundle" "finding-$$" >out 2>words && echo 0 || echo $?; }
expect "crun, /dev/null" 0 "$(status crun </dev/null)"
expect "crun, closed" 1 "$(status crun <&-)"
expect "its words" 1 "$(grep -c 'fchown std stream 0: Bad file descriptor' words)"
expect "runc, closed" 0 "$(status runc <&-)"
