#!/usr/bin/env bash
# `scancel --name=first,second`, after `squeue --name=first,second` has listed the two jobs that are meant.
#
# One would guess: both are cancelled. Both commands take lists of numbers, and squeue lists of names.
# What happens: nothing, without a word, status 0: scancel takes the list for one name. The jobs go on.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   squeue --name=first,second: two jobs     scancel --name=first,second: status 0, and still two jobs
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
for name in first second; do sbatch -Q --hold --output=/dev/null --job-name="$name" --wrap=true; done
listed() { squeue -h -o %j --sort=i --name="$1" | xargs; }
expect "squeue" "first second" "$(listed first,second)"
status=0
scancel --name=first,second >words 2>&1 || status=$?
expect "scancel" "0 " "$status $(cat words)"
expect "squeue after it" "first second" "$(listed first,second)"
scancel --name=first
expect "squeue after scancel --name=first" second "$(listed first,second)"
