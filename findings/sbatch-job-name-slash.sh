#!/usr/bin/env bash
# `sbatch --job-name=train/resnet --output=%x.out`: the output is named after the job, whose name groups it by project.
#
# One would guess: the slash becomes another character, or sbatch refuses the name.
# What happens: sbatch takes it, %x becomes a directory that is not there, and the job fails before its script begins:
# no output, no message, exit code 0:53. The same name works with any other --output.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   %x.out: FAILED 0:53, the script did not run      %j.out: COMPLETED 0:0
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
try() { # OUTPUT: print how the job ended, and what its script has left
	local job
	rm -f ran
	job=$(sbatch --parsable --job-name=train/resnet --output="$1" --wrap 'echo it ran >ran')
	until scontrol show job "$job" | grep -q 'EndTime=2.*' && [[ -z $(squeue -h) ]]; do sleep 0.1; done
	scontrol show job "$job" | grep -o 'JobState=[A-Z]*\|ExitCode=[0-9:]*' | xargs
	cat ran 2>/dev/null || echo nothing
}
expect "a name after the job's number" "JobState=COMPLETED ExitCode=0:0
it ran" "$(try %j.out)"
expect "a name after the job's name" "JobState=FAILED ExitCode=0:53
nothing" "$(try %x.out)"
