#!/usr/bin/env bash
# The container's program is an executable text without #!, which execve(2) refuses (ENOEXEC).
#
# One would guess: `create` or, at the latest, `start` fails, as `create` does for a program that is
# missing or may not be executed.
# What happens: both succeed. The error is written to the container's own standard error, by the runtime,
# and the container ends with 1, not 126 or 127. Whoever looks only at `start` takes it for running.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   create 0, start 0; the container's output: "exec … format error" (both)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
echo words >bundle/rootfs/bin/text
chmod 755 bundle/rootfs/bin/text
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/text"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
for runtime in crun runc; do
	on_exit+=("$runtime delete --force finding-$$")
	seen=0
	"$runtime" create --bundle bundle finding-$$ </dev/null >/dev/null 2>container || seen=$?
	expect "create with $runtime" 0 "$seen"
	seen=0
	"$runtime" start finding-$$ 2>start || seen=$?
	expect "start with $runtime" 0 "$seen"
	expect "words of start" "" "$(cat start)"
	for ((try = 0; try < 100; try++)); do
		[[ ! -s container ]] || break
		sleep 0.1
	done
	expect "words in the container" "exec format error" "$(grep -oi 'exec format error' container | tr E e)"
	"$runtime" delete --force finding-$$
	seen=0
	"$runtime" run --bundle bundle finding-$$ >out 2>&1 || seen=$?
	expect "status of the container with $runtime" 1 "$seen"
done
