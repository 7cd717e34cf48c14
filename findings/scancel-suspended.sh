#!/usr/bin/env bash
# `scancel` of a job that is suspended (`scontrol suspend`). Its script has a trap for SIGTERM.
#
# One would guess: as with a running job: the job goes on (SIGCONT), gets SIGTERM, and has KillWait seconds, 30,
# to save its work.
# What happens: the script's trap does not run, and the job is gone at once.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   running: "saved"      suspended: nothing
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
cat >script <<'END'
#!/bin/sh
trap 'echo saved; exit' TERM
touch begun
while :; do sleep 0.1; done
END
try() { # COMMAND…: before scancel
	local job
	rm -f begun
	job=$(sbatch --parsable --output=out --error=errors script)
	until [[ -e begun ]]; do sleep 0.1; done
	"$@" "$job"
	sleep 1
	scancel "$job"
	until [[ -z $(squeue -h) ]]; do sleep 0.1; done
	cat out
}
start=$SECONDS
expect "a running job" saved "$(try true)"
expect "a suspended job" "" "$(try scontrol suspend)"
expect "less than KillWait" yes "$( ((SECONDS - start < 30)) && echo yes || echo no)"
