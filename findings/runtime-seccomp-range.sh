#!/usr/bin/env bash
# A seccomp rule of config.json with two conditions on one argument: umask(2) fails if its argument is at
# least 2 and at most 4.
#
# One would guess: conditions of a rule go together, so 2 to 4 are refused and 1 and 7 are not. That is
# how conditions on different arguments work.
# What happens: where an argument is named twice, each condition becomes a rule of its own, and one of
# them is enough: every value is at least 2 or at most 4, so every call fails. A range needs rules for
# what is outside it.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   umask 1, 3, 7 with ERRNO for {GE 2, LE 4}: none is taken (both)
#   umask 1, 3, 7 with ERRNO for {EQ 3}: 1 and 7 are taken (both)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
config() { # CONDITIONS: the container prints the masks that it could set
	cat >bundle/config.json <<-END
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
		 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
		             "args": ["/bin/sh", "-c", "for m in 1 3 7; do umask \$m; grep Umask /proc/self/status; done"]},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}],
		           "seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
		                       "syscalls": [{"names": ["umask"], "action": "SCMP_ACT_ERRNO", "args": [$1]}]}}}
	END
}
ln -s busybox bundle/rootfs/bin/grep
seen() { "$1" run --bundle bundle finding-$$ | grep -o '[0-9]*$' | xargs; }
for runtime in crun runc; do
	config '{"index": 0, "value": 3, "op": "SCMP_CMP_EQ"}'
	expect "$runtime, one value" "0001 0001 0007" "$(seen "$runtime")"
	config '{"index": 0, "value": 2, "op": "SCMP_CMP_GE"}, {"index": 0, "value": 4, "op": "SCMP_CMP_LE"}'
	expect "$runtime, a range" "0022 0022 0022" "$(seen "$runtime")"
done
