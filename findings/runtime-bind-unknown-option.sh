#!/usr/bin/env bash
# A mount of config.json has an option that does not exist: "noatme" for noatime, or "size=1g" of a tmpfs.
#
# One would guess: the runtime knows which options there are and refuses the others, or the kernel does, which gets
# what the runtime does not know: with a tmpfs it is "Invalid argument".
# What happens: so with a tmpfs. For a bind mount the kernel does not look at them, and neither crun nor runc says a
# word: the mount is there, without what was meant.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   tmpfs, noatme: 1 (both)      bind, noatme: 0, and the mount is as without it (both)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
ln -s busybox bundle/rootfs/bin/grep
mkdir source
config() { # MOUNT: the container prints its line of /proc/mounts
	cat >bundle/config.json <<-END
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
		 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
		             "args": ["/bin/grep", " /mnt ", "/proc/mounts"]},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/mnt", $1}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
	END
}
seen() { # RUNTIME: its status, and the mount, if there is one
	local status=0
	"$1" run --bundle bundle finding-$$ >words 2>&1 || status=$?
	echo "$status $(grep ' /mnt ' words || true)"
}
for runtime in crun runc; do
	config '"type": "tmpfs", "source": "tmpfs", "options": ["noatme"]'
	expect "$runtime, tmpfs, noatme" "1 " "$(seen "$runtime")"
	config "\"source\": \"$place/source\", \"options\": [\"bind\"]"
	without=$(seen "$runtime")
	config "\"source\": \"$place/source\", \"options\": [\"bind\", \"noatme\"]"
	expect "$runtime, bind, noatme" "$without" "$(seen "$runtime")"
	expect "its status" 0 "${without%% *}"
done
