#!/usr/bin/env bash
# A step is ended: `scancel JOB.STEP`, or SIGTERM to srun.
#
# One would guess: its tasks get SIGTERM, have KillWait seconds (30) to clean up, and then SIGKILL, as
# with `scancel JOB`; and srun passes SIGTERM on as it passes SIGUSR1 on.
# What happens: the tasks get SIGKILL at once, either way. Their handler for SIGTERM never runs. Who
# wants it to run sends it with `scancel --signal=TERM JOB.STEP`.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   scancel JOB.STEP: status 137, no word of the handler
#   SIGTERM to srun:  status 137, no word of the handler
#   scancel --signal=TERM JOB.STEP: status 5, "cleans up"
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
mkfifo begun
try() { # COMMAND: that ends the step JOB.0 of srun PID
	local seen=0
	: >out
	srun -Q -n1 -u sh -c "trap 'echo cleans up; exit 5' TERM; echo >$place/begun; while :; do sleep 0.1; done" \
		>out 2>>messages &
	PID=$!
	read -r _ <begun
	JOB=$(squeue -h -o %i)
	eval "$1"
	wait "$PID" || seen=$?
	echo "$seen $(cat out)"
	until [[ -z $(squeue -h) ]]; do sleep 0.1; done
}
expect "scancel of the step" "137 " "$(try 'scancel $JOB.0')"
expect "SIGTERM to srun" "137 " "$(try 'kill -TERM $PID')"
expect "scancel with SIGTERM" "5 cleans up" "$(try 'scancel --signal=TERM $JOB.0')"
