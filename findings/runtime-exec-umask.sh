#!/usr/bin/env bash
# process.user.umask is set in config.json, and a command is executed in the container with `exec`.
#
# One would guess: the command has the container's umask. runc gives it the container's environment,
# directory, groups and limits as well.
# What happens: with both it has 022, so what it writes into the container's files can be read by all.
# Who wants the umask gives the whole process with --process.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   "umask": 63.    container: 0077    exec: 0022 (both)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0, "umask": 63}, "env": ["PATH=/bin"],
             "args": ["/bin/sh", "-c", "umask >/mnt/seen; sleep 60"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
for runtime in crun runc; do
	rm -f bundle/rootfs/mnt/seen
	on_exit+=("$runtime delete --force finding-$$")
	"$runtime" run --detach --bundle bundle finding-$$ </dev/null >/dev/null 2>&1
	for ((try = 0; try < 100; try++)); do
		[[ ! -s bundle/rootfs/mnt/seen ]] || break
		sleep 0.1
	done
	expect "container with $runtime" 0077 "$(cat bundle/rootfs/mnt/seen)"
	expect "exec with $runtime" 0022 "$("$runtime" exec finding-$$ /bin/sh -c umask)"
done
