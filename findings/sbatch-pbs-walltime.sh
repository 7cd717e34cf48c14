#!/usr/bin/env bash
# A script with lines for PBS, which sbatch reads too: #PBS -N, -l nodes=1:ppn=2, -l walltime=3600.
#
# One would guess: they mean to Slurm what they mean to PBS, where a walltime without colons is in seconds; or they are
# comments.
# What happens: sbatch takes all three, but the number for minutes, as in its own --time: a job of an hour gets 2 days
# and 12 hours. hours:minutes:seconds is right.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   walltime=01:00:00: 01:00:00      walltime=3600: 2-12:00:00
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
seen() { # WALLTIME: name, processors and time limit of the job
	printf '%s\n' '#!/bin/sh' '#PBS -N name' '#PBS -l nodes=1:ppn=2' "#PBS -l walltime=$1" true >script
	squeue -h -o '%j %C %l' --jobs="$(sbatch --parsable --hold script)"
}
expect walltime=01:00:00 "name 2 1:00:00" "$(seen 01:00:00)"
expect walltime=3600 "name 2 2-12:00:00" "$(seen 3600)"
