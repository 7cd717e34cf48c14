#!/usr/bin/env bash
# A script of PBS is submitted with Slurm's own qsub. It begins with `cd "$PBS_O_WORKDIR"`, as nearly all do, or takes
# its part of an array (qsub -t 1-3) from $PBS_ARRAYID.
#
# One would guess: PBS_O_WORKDIR, PBS_JOBID, PBS_NODEFILE and PBS_ARRAYID are set, as qsub is there to run these
# scripts.
# What happens: none of them is. So `cd "$PBS_O_WORKDIR"` stays where it is, without quotes it goes to the home
# directory, and every element of an array does the same part. With -v NAME=VALUE the job has, beside what Slurm sets,
# nothing but that: not even the PATH that it has without -v.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   variables PBS_…: 0     -t 1-3: PBS_ARRAYID is not set, 3 times      MINE, with -v: the shell's own PATH
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
torque
slurm
cat >script <<'END_OF_SCRIPT'
#!/bin/bash
set=("${!PBS_@}")
echo "${#set[@]} ${PBS_ARRAYID-not set}" >"seen-$SLURM_JOB_ID"
[[ $PATH == */root/usr/bin:* ]] && echo PATH >>"seen-$SLURM_JOB_ID"
[[ -z ${MINE-} ]] || echo "MINE=$MINE" >>"seen-$SLURM_JOB_ID"
true
END_OF_SCRIPT
seen() { # ARGUMENT…: of qsub
	rm -f seen-*
	qsub "$@" script >>words 2>&1
	for ((try = 0; try < 100; try++)); do
		[[ -n $(squeue -h) ]] || break
		sleep 0.1
	done
	cat seen-* | xargs
}
expect "a job" "0 not set PATH" "$(seen)"
expect "an array" "0 not set PATH 0 not set PATH 0 not set PATH" "$(seen -t 1-3)"
expect "with -v" "0 not set MINE=1" "$(seen -v MINE=1)"
