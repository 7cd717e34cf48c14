#!/usr/bin/env bash
# `sbatch --wait`, and its job is cancelled before it has begun.
#
# One would guess: a status other than 0; the script has not run. When the job is cancelled later, it is 1.
# What happens: 0, without a word. A pipeline of `sbatch --wait` and what needs its result goes on.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   scancel while it runs: 1      scancel while it waits: 0
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
try() { # STATE OPTION…: what sbatch says and ends with when its job is cancelled in this state
	local sbatch job=
	sbatch -Q --wait --output=/dev/null "${@:2}" --wrap='sleep 100' >words 2>&1 &
	sbatch=$!
	until [[ -n $job ]]; do
		sleep 0.1
		job=$(squeue -h -o %i --states="$1")
	done
	scancel "$job"
	wait "$sbatch" && echo "0 $(cat words)" || echo "$? $(cat words)"
}
expect "while it runs" "1 " "$(try RUNNING)"
expect "while it waits" "0 " "$(try PENDING --begin=now+1hour)"
expect "while it is held" "0 " "$(try PENDING --hold)"
