#!/usr/bin/env bash
# Somebody writes members of config.json with other capitals: "hostName" for hostname, "rLimits" for rlimits.
#
# One would guess: a member of that name does not exist, and a runtime passes over it, as the specification wants, or
# refuses it; the same with all of them. Names in JSON are told apart by their capitals.
# What happens: crun passes over it. runc takes it as meant: the parser of Go has no regard to capitals. So a bundle
# that was only tried with runc gets another host name and other limits with crun, without a word; and where both
# spellings are there, the later one counts with runc.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   "hostName": "meant", "rLimits" of 77 files: runc meant and 77, crun neither
#   "hostname": "first", "hostName": "second": runc second, crun first
. "$(dirname "$0")/common.bash" || exit 2
runtimes
seen() { # RUNTIME LIMITS HOSTNAME…: members of config.json; print the host's name in the container, and its limit
	cat >bundle/config.json <<-END_OF_JSON
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"}, $3
		 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"], $2
		             "args": ["/bin/sh", "-c", "cat /proc/sys/kernel/hostname; ulimit -n"]},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "uts"}]}}
	END_OF_JSON
	"$1" run --bundle "$place/bundle" "finding-$$" </dev/null 2>words | xargs
}
limits='"rLimits": [{"type": "RLIMIT_NOFILE", "soft": 77, "hard": 77}],'
other=$(ulimit -n)
expect "runc" "meant 77" "$(seen runc "$limits" '"hostName": "meant",')"
expect "crun passes over both" "$(cat /proc/sys/kernel/hostname) $other" "$(seen crun "$limits" '"hostName": "meant",')"
both='"hostname": "first", "hostName": "second",'
expect "runc, both spellings" second "$(seen runc '' "$both" | cut -d ' ' -f 1)"
expect "crun, both spellings" first "$(seen crun '' "$both" | cut -d ' ' -f 1)"
