#!/usr/bin/env bash
# A batch job is put back into the queue after its first try has failed: `scontrol requeue JOB`, as preemption and the
# failure of a node do too. sbatch has --output=FILE or none, and the job has the same number again.
#
# One would guess: the file has what both tries have printed, or the second has a file of its own; so one can look
# why the first failed.
# What happens: the second try empties the file when it begins. Only --open-mode=append (or JobFileAppend=1 of
# slurm.conf) keeps what was there.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   the file: second     with --open-mode=append: first second
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
cat >script <<'END'
#!/bin/sh
if [ -n "$SLURM_RESTART_COUNT" ]; then echo second; exit; fi
echo first
touch begun
sleep 600
END
try() { # OPTION…: prints the output of both tries, between the tries' ends
	local job
	rm -f begun out
	job=$(sbatch --parsable --requeue --output=out "$@" script)
	until [[ -e begun ]]; do sleep 0.1; done
	expect "after the first try" first "$(cat out)" >&2
	scontrol requeue "$job"
	until [[ $(squeue -h -j "$job" -o '%t %r') == "PD BeginTime" ]]; do sleep 0.1; done
	scontrol update jobid="$job" starttime=now
	while [[ -n $(squeue -h -j "$job") ]]; do sleep 0.2; done
	grep -xE "first|second" out | xargs
}
expect "output" second "$(try)"
expect "output, --open-mode=append" "first second" "$(try --open-mode=append)"
