#!/usr/bin/env bash
# A value with "#" in a line of #SBATCH, such as --job-name=fix#5, --output=out#1 or --comment=PR#12.
#
# One would guess: it is part of the value, as on the command line of sbatch and in a shell, where "#" begins a comment
# only after a space.
# What happens: the rest of the line is a comment wherever "#" stands, and is dropped without a word. So the job has
# another name, and writes to another file than the one that is looked for. In quotes "#" stays.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   sbatch --job-name=fix#5: fix#5      #SBATCH --job-name=fix#5: fix      #SBATCH --job-name="fix#5": fix#5
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
name() { # LINE OPTION…: the name of a job with this line
	printf '#!/bin/sh\n%s\ntrue\n' "$1" >script
	squeue -h -o %j --jobs="$(sbatch --parsable --hold "${@:2}" script)"
}
expect "on the command line" 'fix#5' "$(name '' --job-name=fix#5)"
expect "in the script" fix "$(name '#SBATCH --job-name=fix#5')"
expect "with quotes" 'fix#5' "$(name '#SBATCH --job-name="fix#5"')"
printf '#!/bin/sh\n#SBATCH --output=out#1\ntrue\n' >script
sbatch -Q --wait script
expect "file of --output=out#1" out "$(echo out*)"
