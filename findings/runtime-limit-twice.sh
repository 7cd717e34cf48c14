#!/usr/bin/env bash
# config.json has a limit twice, as one list of rlimits appended to another gives it: of 100 open files, then of 50.
#
# One would guess: an error: "If rlimits contains duplicated entries with same type, the runtime MUST generate an
# error", says the specification.
# What happens: both runtimes set one after the other, without a word, so the last one counts.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   100, then 50: both 50      50, then 100: both 100
. "$(dirname "$0")/common.bash" || exit 2
runtimes
seen() { # RUNTIME FIRST SECOND
	cat >bundle/config.json <<-END_OF_JSON
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
		 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
		             "args": ["/bin/sh", "-c", "ulimit -n"],
		             "rlimits": [{"type": "RLIMIT_NOFILE", "soft": $2, "hard": 200},
		                         {"type": "RLIMIT_NOFILE", "soft": $3, "hard": 200}]},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
	END_OF_JSON
	"$1" run --bundle "$place/bundle" "finding-$$" </dev/null 2>words
}
for runtime in crun runc; do
	expect "$runtime, 100 and 50" 50 "$(seen "$runtime" 100 50)"
	expect "$runtime, 50 and 100" 100 "$(seen "$runtime" 50 100)"
done
