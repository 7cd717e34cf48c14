#!/usr/bin/env bash
# `crun kill ID kill`, or a misspelled signal: `crun kill ID TREM`.
#
# One would guess: small letters do, as with kill(1) of util-linux and `runc kill`; anything else is an error.
# What happens: status 0 and no word, and the container gets nothing: crun knows capital letters alone, and takes any
# other name for 0, which asks whether a process is there. A script that goes on to wait for the end waits for ever.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   kill: crun 0, running    runc 0, stopped       TREM: crun 0    runc 1
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END'
{
	"ociVersion": "1.0.2",
	"process": {"user": {"uid": 0, "gid": 0}, "args": ["sleep", "60"], "env": ["PATH=/bin"], "cwd": "/"},
	"root": {"path": "rootfs"},
	"mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
	"linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}]}
}
END
on_exit+=("crun delete --force it; runc delete --force it")
try() { # RUNTIME SIGNAL: the status of `kill`, and whether the container runs after it
	local status=0 try
	"$1" kill it "$2" 2>>words || status=$?
	for ((try = 0; try < 20; try++)); do
		[[ $("$1" state it) == *'"running"'* ]] || { echo "$status stopped"; return; }
		sleep 0.05
	done
	echo "$status running"
}
for runtime in crun runc; do
	"$runtime" run --detach --bundle bundle it </dev/null >out 2>&1 || cannot "$(tail -n 1 out)"
done
expect "TREM, crun" "0 running" "$(try crun TREM)"
expect "kill, crun" "0 running" "$(try crun kill)"
expect "KILL, crun" "0 stopped" "$(try crun KILL)"
expect "TREM, runc" "1 running" "$(try runc TREM)"
expect "kill, runc" "0 stopped" "$(try runc kill)"
