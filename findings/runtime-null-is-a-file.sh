#!/usr/bin/env bash
# An image has a regular file /dev/null: a program that was run in the tree as root before it had devices has made it
# with `>/dev/null`. A container is made of it whose config.json mounts nothing at /dev, and its output goes to a file:
# runc run ID >OUTPUT, or to a pipe, as engines have it.
#
# One would guess: the program's output is in OUTPUT, as ever; at worst what it writes to /dev/null is kept.
# What happens: OUTPUT is empty, and so is the pipe; the output is in the image's file /dev/null. Both runtimes put the
# container's own /dev/null in place of each standard stream that is the host's, and know it by its device number
# (st_rdev). That is 0 for every file and every pipe.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   echo words, to a file or a pipe: nothing there, rootfs/dev/null "words"
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END_OF_JSON'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
             "args": ["/bin/sh", "-c", "echo words"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END_OF_JSON
seen() { # RUNTIME PREPARE file|pipe: its status, the output, and what is in the file
	local status=0
	rm -rf bundle/rootfs/dev
	mkdir bundle/rootfs/dev
	eval "$2"
	if [[ $3 == file ]]; then
		"$1" run --bundle "$place/bundle" "finding-$$" </dev/null >out 2>messages || status=$?
	else
		"$1" run --bundle "$place/bundle" "finding-$$" </dev/null 2>messages | cat >out || status=$?
	fi
	echo "$status '$(cat out)' '$(cat bundle/rootfs/dev/null)'"
}
for runtime in crun runc; do
	for output in file pipe; do
		expect "$runtime, to a $output" "0 'words' ''" "$(seen "$runtime" : "$output")"
		expect "$runtime, to a $output, with a file /dev/null" "0 '' 'words'" \
			"$(seen "$runtime" 'touch bundle/rootfs/dev/null' "$output")"
	done
done
