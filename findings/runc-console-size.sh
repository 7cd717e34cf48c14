#!/usr/bin/env bash
# config.json gives the container's terminal a size: "terminal": true, "consoleSize": {"height": 30, "width": 100}, as
# engines write it there, since nobody may be at the terminal yet.
#
# One would guess: the terminal has it. It is in the specification since version 1.0, for Linux too.
# What happens: so with crun. runc passes over it: the terminal has the size of the one at which runc is called.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   stty size, called at a terminal of 11 lines and 44 columns: crun 30 100, runc 11 44
. "$(dirname "$0")/common.bash" || exit 2
runtimes
ln -s busybox bundle/rootfs/bin/stty
cat >bundle/config.json <<'END_OF_JSON'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"], "args": ["/bin/stty", "size"],
             "terminal": true, "consoleSize": {"height": 30, "width": 100}},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
             "options": ["newinstance", "ptmxmode=0666"]}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END_OF_JSON
export place
export -f crun runc
size() {
	SHELL=/bin/bash script -qec "stty rows 11 cols 44; $1 run --bundle $place/bundle finding-$$" /dev/null </dev/null |
		grep -o '[0-9]* [0-9]*'
}
expect crun "30 100" "$(size crun)"
expect runc "11 44" "$(size runc)"
