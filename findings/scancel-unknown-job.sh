#!/usr/bin/env bash
# scancel of a job that does not exist, and never did.
#
# One would guess: "Invalid job id" and a status other than 0, as squeue, scontrol and, for a step,
# scancel itself have.
# What happens: no word, status 0. Whoever mistypes the number takes the job for cancelled.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   scancel 99999: 0, no output    scancel 99999.0: 1    squeue --jobs=99999: 1
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
status() { local seen=0; "$@" >out 2>&1 || seen=$?; echo "$seen"; }
expect "scancel of a step" 1 "$(status scancel 99999.0)"
expect "squeue" 1 "$(status squeue --jobs=99999)"
expect "scontrol" 1 "$(status scontrol show job 99999)"
expect "scancel of the job" 0 "$(status scancel 99999)"
expect "its words" "" "$(cat out)"
