#!/usr/bin/env bash
# `scancel --signal=USR1 JOB` for a batch script that has a trap for SIGUSR1, to save its work.
#
# One would guess: the script gets it. `scancel JOB` does end the script, with SIGTERM for its trap.
# What happens: with --signal only steps (srun) get it, whatever the signal, so a script that calls its
# programs directly never hears of it. Status 0, not a word. --batch or --full is needed.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   --signal=USR1, --signal=TERM: 0, nothing      --batch --signal=USR1: "USR1"      scancel JOB: "TERM"
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
cat >script <<'END'
#!/bin/sh
trap 'echo USR1' USR1
trap 'echo TERM; exit' TERM
touch begun
n=0
while [ $n -lt 25 ]; do sleep 0.1; n=$((n + 1)); done
END
try() { # OPTION…: the status of scancel, and what the script has written
	local job status=0
	rm -f begun
	job=$(sbatch --parsable --output=out --error=errors script)
	until [[ -e begun ]]; do sleep 0.1; done
	sleep 0.5
	scancel "$@" "$job" >words 2>&1 || status=$?
	until [[ -z $(squeue -h) ]]; do sleep 0.1; done
	echo "$status $(cat words)$(xargs <out)"
}
expect "SIGUSR1" "0 " "$(try --signal=USR1)"
expect "SIGTERM" "0 " "$(try --signal=TERM)"
expect "SIGUSR1 with --batch" "0 USR1" "$(try --batch --signal=USR1)"
expect "without --signal" "0 TERM" "$(try)"
