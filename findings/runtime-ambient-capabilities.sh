#!/usr/bin/env bash
# A user other than root gets CAP_KILL: it is in the sets permitted, effective, bounding and ambient
# of config.json, but not in inheritable.
#
# One would guess: the process has it, since ambient is the set that survives execve(2); or, if the
# sets do not go together, the runtime says so and refuses.
# What happens: the process has no capability at all, and neither runtime says a word. The kernel takes
# into the ambient set only what is permitted and inheritable too, and both ignore its refusal.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   not inheritable: CapEff 0000000000000000 (both)
#   inheritable too: CapEff 0000000000000020 (both)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
config() { # INHERITABLE
	cat >bundle/config.json <<-END
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
		 "process": {"cwd": "/", "user": {"uid": 1000, "gid": 1000}, "env": ["PATH=/bin"],
		             "args": ["/bin/sh", "-c", "grep CapEff /proc/self/status"],
		             "capabilities": {"permitted": ["CAP_KILL"], "effective": ["CAP_KILL"],
		                              "bounding": ["CAP_KILL"], "ambient": ["CAP_KILL"],
		                              "inheritable": $1}},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
	END
}
ln -s busybox bundle/rootfs/bin/grep
for runtime in crun runc; do
	config '[]'
	expect "$runtime, not inheritable" "CapEff: 0000000000000000" \
		"$("$runtime" run --bundle bundle finding-$$ 2>&1 | xargs)"
	config '["CAP_KILL"]'
	expect "$runtime, inheritable too" "CapEff: 0000000000000020" \
		"$("$runtime" run --bundle bundle finding-$$ 2>&1 | xargs)"
done
