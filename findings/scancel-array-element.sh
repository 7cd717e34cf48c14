#!/usr/bin/env bash
# An element of a job array gives itself up: `scancel "$SLURM_JOB_ID"` in its script.
#
# One would guess: that ends this element. SLURM_JOB_ID differs from element to element, and squeue -o %A
# shows it.
# What happens: never what was meant. Of the last element it is the number of the whole array
# (SLURM_ARRAY_JOB_ID), so all elements are cancelled, also those that run well. Of any other element
# scancel cancels nothing, without a word, status 0. What names an element is
# ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   elements that end well, of 3:   1 gives up: 1 2 3    3 gives up: none    1 gives up by 1_1: 2 3
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
cat >script <<'END'
#!/bin/sh
touch "begun.$SLURM_ARRAY_TASK_ID"
until [ -e begun.1 ] && [ -e begun.2 ] && [ -e begun.3 ]; do sleep 0.1; done
[ "$SLURM_ARRAY_TASK_ID" != "$1" ] || { scancel "$(eval "echo $2")" >words 2>&1; echo $? >status; }
sleep 3
touch "well.$SLURM_ARRAY_TASK_ID"
END
try() { # ELEMENT NAME: the element that gives up, and by what; prints those that end well
	rm -f begun.* well.* words status
	sbatch -Q --array=1-3 --output=/dev/null script "$@"
	until [[ -z $(squeue -h) ]]; do sleep 0.1; done
	find . -maxdepth 1 -name 'well.*' -printf '%f\n' | cut -d. -f2 | sort | xargs
}
expect "element 1" "1 2 3" "$(try 1 '$SLURM_JOB_ID')"
expect "scancel's status and words" "0 " "$(cat status) $(cat words)"
expect "element 3" "" "$(try 3 '$SLURM_JOB_ID')"
expect "element 1 by its own name" "2 3" "$(try 1 '${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID')"
