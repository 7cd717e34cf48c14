#!/usr/bin/env bash
# A capability in config.json as docker, podman and compose files have it, KILL, or in small letters, cap_kill, as
# getpcaps and setcap print it; or one that is mistyped or newer than the runtime.
#
# One would guess: an error, as for a limit that does not exist (RLIMIT_NOSUCH); or KILL and cap_kill mean CAP_KILL.
# What happens: the container runs without it. crun drops a name that it does not know without a word, runc with a
# line of warning; neither knows KILL. cap_kill is CAP_KILL for crun, and nothing for runc.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   bit 5 of CapEff: CAP_KILL both, cap_kill crun alone, KILL none      CAP_NOSUCH: both run
. "$(dirname "$0")/common.bash" || exit 2
runtimes
ln -s busybox bundle/rootfs/bin/grep
effective() { # NAME RUNTIME
	cat >bundle/config.json <<-END_OF_JSON
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
		 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
		             "capabilities": {"bounding": ["$1"], "effective": ["$1"], "permitted": ["$1"]},
		             "args": ["/bin/grep", "CapEff", "/proc/self/status"]},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
	END_OF_JSON
	"$2" run --bundle "$place/bundle" "finding-$$" </dev/null 2>words | cut -f 2
}
kill=0000000000000020 nothing=0000000000000000
expect "crun, CAP_KILL" "$kill" "$(effective CAP_KILL crun)"
expect "runc, CAP_KILL" "$kill" "$(effective CAP_KILL runc)"
expect "crun, cap_kill" "$kill" "$(effective cap_kill crun)"
expect "runc, cap_kill" "$nothing" "$(effective cap_kill runc)"
for name in KILL CAP_NOSUCH; do
	expect "crun, $name" "$nothing 0" "$(effective "$name" crun) $(stat -c %s words)"
	expect "runc, $name" "$nothing 1" "$(effective "$name" runc) $(grep -c 'level=warning msg="ignoring unknown' words)"
done
