#!/usr/bin/env bash
# A mount of config.json with "type": "bind" and no "bind" among its options.
#
# One would guess: it is a bind mount; the type says so.
# What happens: the type goes to mount(2) as the name of a file system, which no kernel has. What
# makes a bind mount is the option "bind" or "rbind" alone; with it, any type will do.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   type bind, options ro:          No such device (both)
#   type nonsense, options bind,ro: ok (both)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
mkdir shared
echo ok >shared/file
config() { # TYPE OPTIONS
	cat >bundle/config.json <<-END
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
		 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/cat", "/mnt/file"],
		             "env": []},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
		            {"destination": "/mnt", "type": "$1", "source": "$place/shared",
		             "options": $2}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
	END
}
for runtime in crun runc; do
	config bind '["ro"]'
	"$runtime" run --bundle bundle finding-$$ >out 2>&1 && seen=0 || seen=$?
	expect "$runtime, type bind: status" 1 "$seen"
	expect "$runtime, type bind: words" "no such device" "$(grep -oi 'no such device' out | tr N n)"
	config nonsense '["bind", "ro"]'
	expect "$runtime, type nonsense" ok "$("$runtime" run --bundle bundle finding-$$)"
done
