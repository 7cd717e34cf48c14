#!/usr/bin/env bash
# A script is submitted now with --array, now without, and has #SBATCH --output=result-%a.
#
# One would guess: without an array %a is empty or 0, or sbatch refuses it; SLURM_ARRAY_TASK_ID is not set then.
# What happens: it is 4294967294, the number that Slurm keeps for "no value": the next reader sorts it after all
# elements, or takes it for one. %A is the number of the job.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   the file of %a without --array: result-4294967294
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
printf '#!/bin/sh\n#SBATCH --output=result-%%A-%%a\necho "${SLURM_ARRAY_TASK_ID-not set}"\n' >script
sbatch -Q --wait script
expect "file" "result-1-4294967294" "$(echo result-*)"
expect "SLURM_ARRAY_TASK_ID" "not set" "$(cat result-*)"
