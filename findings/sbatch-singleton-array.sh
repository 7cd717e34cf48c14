#!/usr/bin/env bash
# Elements of an array use one thing, a database or a directory, and must not run at once:
# sbatch --array=1-3 --job-name=NAME --dependency=singleton.
#
# One would guess: one at a time. singleton means that one job of a name and a user runs at any time, and an element is
# a job, with a number, this name and this user. With three calls of sbatch it is so.
# What happens: all three run at once. The elements wait for earlier jobs of the name, not for each other, and no word
# says so. --array=1-3%1 is the way.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   at once:   three calls of sbatch: 1     --array=1-3: 3
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
submit() { sbatch -Q --parsable --job-name=same --dependency=singleton --output=/dev/null "$@" --wrap 'sleep 600'; }
running() { # NUMBER: waits until so many run, and a while longer for more
	local try
	for ((try = 0; try < 200; try++)); do
		(($(squeue -h -r -t running -o %i | wc -l) < $1)) || break
		sleep 0.1
	done
	sleep 3
	squeue -h -r -o %t | sort | uniq -c | xargs
}
for element in 1 2 3; do submit >>jobs; done
expect "three calls" "2 PD 1 R" "$(running 1)"
scancel --user=root
until [[ -z $(squeue -h) ]]; do sleep 0.1; done
submit --array=1-3 >>jobs
expect "an array" "3 R" "$(running 3)"
scancel --user=root
