#!/usr/bin/env bash
# `sattach JOB.STEP` to look into a step that runs for some time already.
#
# One would guess: it shows what the step writes from now on, as `docker attach`, or all of it, as `tail -f -n +1`.
# What happens: it first shows what the step has written before, but only the last 128 pieces that it wrote: all of a
# step that wrote little or much at once, and the end of one that wrote line by line. Nothing tells where it begins.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   200 lines before, one by one: from line 73 on      the same lines, written at once: from line 1 on
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
first_line() { # SCRIPT: of what sattach shows, which comes when it has written 200 lines
	rm -f written go
	srun sh -c "$1; touch written; until [ -e go ]; do sleep 0.1; done" >all &
	until [[ -e written && $(wc -l <all) == 200 ]]; do sleep 0.1; done
	sattach "$(squeue -h -o %A).0" >seen &
	sleep 1
	touch go
	wait
	head -n 1 seen
}
expect "one by one" 73 "$(first_line 'for i in $(seq 200); do echo $i; sleep 0.02; done')"
expect "at once" 1 "$(first_line 'seq 200')"
