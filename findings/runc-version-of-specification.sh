#!/usr/bin/env bash
# config.json says by "ociVersion" which version of the runtime specification it follows; it is required. A bundle is
# of a version that does not exist yet, 9.9.9, or has no such member.
#
# One would guess: a runtime refuses both: what a later version asks for it does not know, and the number is there for
# that.
# What happens: so with crun. runc never looks at it: the container runs, status 0 and no word, and what the other
# version has anew is left out.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   9.9.9: crun 1 ("unknown version specified"), runc 0      none: crun 1, runc 0
. "$(dirname "$0")/common.bash" || exit 2
runtimes
status() { # VERSION RUNTIME
	cat >bundle/config.json <<-END_OF_JSON
		{$1 "root": {"path": "rootfs"},
		 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": ["PATH=/bin"]},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
	END_OF_JSON
	"$2" run --bundle "$place/bundle" "finding-$$" </dev/null >out 2>words && echo 0 || echo $?
}
for version in '"ociVersion": "9.9.9",' ''; do
	expect "crun, ${version:-none}" 1 "$(status "$version" crun)"
	expect "runc, ${version:-none}" "0 0" "$(status "$version" runc) $(stat -c %s words)"
done
