#!/usr/bin/env bash
# A seccomp profile refuses a call whose name is mistyped, or is one of another architecture: "umaks" for umask.
#
# One would guess: the runtime or libseccomp, which has a table of all names, refuses it; nobody would hear of it
# otherwise.
# What happens: status 0 and no word, with both. A profile is to serve kernels and libraries of any age, so a name
# that is not known is passed over, and the call is allowed.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   umask 7 with ERRNO for umask: 0022 (both)     with ERRNO for umaks: 0007, status 0, no word (both)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
ln -s busybox bundle/rootfs/bin/grep
seen() { # RUNTIME NAME
	cat >bundle/config.json <<-CONFIG
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
		 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
		             "args": ["/bin/sh", "-c", "umask 7; grep Umask /proc/self/status"]},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}],
		           "seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
		                       "syscalls": [{"names": ["$2"], "action": "SCMP_ACT_ERRNO"}]}}}
	CONFIG
	local status=0
	"$1" run --bundle bundle finding-$$ >out 2>&1 || status=$?
	echo "$(xargs <out), status $status"
}
for runtime in crun runc; do
	expect "$runtime, umask" "Umask: 0022, status 0" "$(seen "$runtime" umask)"
	expect "$runtime, umaks" "Umask: 0007, status 0" "$(seen "$runtime" umaks)"
done
