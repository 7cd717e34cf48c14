#!/usr/bin/env bash
# A script takes the state of jobs from `squeue -h --Format=Name,State` (-O), as the second word or after the last
# blank.
#
# One would guess: the columns are as wide as needed, or have a blank between them, as with --format and sacct.
# What happens: each has 20 characters, the rest is cut off, and nothing is between them: a name of 20 and more and
# the state are one word. Nothing says that there was more. "Name:.40" and so on give a width, and still no blank.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   a job preprocess-of-run-seven:   preprocess-of-run-sePENDING
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
sbatch -Q --hold --output=/dev/null --job-name=preprocess-of-run-seven --wrap true
seen() { squeue -h "$@" | sed 's/ *$//'; }
expect "--format" "preprocess-of-run-seven PENDING" "$(seen --format='%j %T')"
expect "--Format" "preprocess-of-run-sePENDING" "$(seen --Format=Name,State)"
expect "with a width" "preprocess-of-run-sevenPENDING" "$(seen --Format=Name:23,State)"
