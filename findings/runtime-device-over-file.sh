#!/usr/bin/env bash
# config.json asks for a device at a path where the image has a file, or another device: a list of the image that was
# unpacked without the right to make devices has empty files at their places.
#
# One would guess: an error: "if a file already exists at path that does not match the requested device, the runtime
# MUST generate an error", says the specification. Or the device takes the place of the file.
# What happens: both runtimes take whatever is there, without a word. The same is so for /dev/null and the others that
# every container gets: if /dev is a directory of the image, a file /dev/null stays a file.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   a file at /opt/random: both 0, and it is the file      another device (1, 5) instead of 1, 8: both 0, 1, 5
. "$(dirname "$0")/common.bash" || exit 2
runtimes
mkdir -p bundle/rootfs/opt bundle/rootfs/dev
cat >bundle/config.json <<'END_OF_JSON'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
             "args": ["/bin/stat", "-c", "%F %t,%T", "/opt/random", "/dev/zero"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}],
           "devices": [{"path": "/opt/random", "type": "c", "major": 1, "minor": 8}]}}
END_OF_JSON
seen() { # RUNTIME
	local status=0
	rm -rf bundle/rootfs/dev
	mkdir bundle/rootfs/dev
	touch bundle/rootfs/dev/zero
	"$1" run --bundle "$place/bundle" "finding-$$" </dev/null >out 2>words || status=$?
	echo "$status $(paste -sd ';' out)"
}
for runtime in crun runc; do
	expect "$runtime, nothing there" "0 character special file 1,8;regular empty file 0,0" "$(seen "$runtime")"
	rm bundle/rootfs/opt/random
	touch bundle/rootfs/opt/random
	expect "$runtime, a file" "0 regular empty file 0,0;regular empty file 0,0" "$(seen "$runtime")"
	rm bundle/rootfs/opt/random
	mknod bundle/rootfs/opt/random c 1 5 || cannot "no devices can be made"
	expect "$runtime, another device" "0 character special file 1,5;regular empty file 0,0" "$(seen "$runtime")"
	rm bundle/rootfs/opt/random
done
