#!/usr/bin/env bash
# `scontrol suspend` of a job that srun has allocated for itself, while a workflow tool reads what `srun -vv` says.
#
# One would guess: srun says so, as salloc does: both hold the job, and slurmctld sends messages to either.
# What happens: `salloc -v` says "job has been suspended" and "job has been resumed"; srun says nothing, however
# verbose, and its program just seems to take longer.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   salloc: suspended, resumed      srun: nothing
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
try() { # COMMAND…: run it with sleep; print what it says of its job's suspension
	local job
	"$@" sh -c 'touch runs; sleep 3' >/dev/null 2>said &
	until [[ -e runs ]]; do sleep 0.1; done
	job=$(squeue -h -o %A)
	scontrol suspend "$job"
	sleep 1
	scontrol resume "$job"
	wait $!
	rm -f runs
	grep -o 'suspended\|resumed' said | xargs
}
expect salloc "suspended resumed" "$(try salloc -v)"
expect srun "" "$(try srun -vv)"
