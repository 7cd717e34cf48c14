#!/usr/bin/env bash
# A directory of the host is given to a container for reading: "options": ["rbind", "ro"]. Below it another file
# system is mounted: /data with /data/results, / with /home.
#
# One would guess: nothing of it can be written. "rbind" takes what is mounted below as well, and "ro" is for the
# mount that config.json describes.
# What happens: only the directory's own file system is read-only; what is mounted below can be written, with both
# runtimes. The kernel sets flags of one mount and not of those below. "rro" is the option for all of them.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   written:   rbind, ro: below/file (both)     rbind, rro: nothing (both)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
ln -s busybox bundle/rootfs/bin/touch
mkdir -p source/below
mount -t tmpfs tmpfs source/below
on_exit+=("umount source/below")
written() { # RUNTIME OPTION
	cat >bundle/config.json <<-CONFIG
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
		 "process": {"cwd": "/mnt", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
		             "args": ["/bin/sh", "-c", "touch file; touch below/file; true"]},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
		            {"destination": "/mnt", "type": "bind", "source": "$place/source", "options": ["rbind", "$2"]}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
	CONFIG
	"$1" run --bundle bundle finding-$$ 2>>words || cannot "$(tail -n 1 words)"
	(cd source && find . -type f -printf '%P\n' -delete)
}
for runtime in crun runc; do
	expect "$runtime, ro" below/file "$(written "$runtime" ro)"
	expect "$runtime, rro" "" "$(written "$runtime" rro)"
done
