#!/usr/bin/env bash
# KillWait=1, and the job of an srun in an allocation is cancelled while a task ignores SIGTERM.
#
# One would guess: the task is killed after a second, and srun ends with 137, as with the default
# KillWait of 30.
# What happens: srun waits KillWait and two seconds, which is less than the node takes. It says "Timed
# out waiting for job step to complete" and ends with 0, as if the task had. salloc, which ends with the
# status of its command, passes the 0 on.
# Seen with Slurm 22.05.8 of Debian 12; KillWait=2 does the same. Needs root.
#
#   srun: error: Timed out waiting for job step to complete
#   srun 0, salloc 0
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm KillWait=1
cat >command <<'END'
srun -n1 sh -c "trap : TERM; echo >$1/begun; while :; do sleep 0.1; done" 2>"$1/messages" &
read -r _ <"$1/begun"
scancel "$SLURM_JOB_ID"
wait $!
echo "$?" >"$1/status"
exit "$(cat "$1/status")"
END
mkfifo begun
seen=0
salloc -Q -n1 sh "$place/command" "$place" 2>>salloc || seen=$?
expect "status of srun" 0 "$(cat status)"
expect "status of salloc" 0 "$seen"
expect "words of srun" "Timed out waiting for job step to complete" \
	"$(grep -o 'Timed out waiting for job step to complete' messages)"
