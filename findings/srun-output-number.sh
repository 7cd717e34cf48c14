#!/usr/bin/env bash
# A series of runs of two tasks, each with its number as the name of its output: srun -n2 --output=$i, i from 0 to 3.
#
# One would guess: four files 0, 1, 2 and 3, with what both tasks have printed.
# What happens: a number that is less than the number of tasks means that task: its output comes to the terminal, that
# of the other task is thrown away, and there is no file. From 2 on it is the name of a file. Status 0, no word.
# "./1" is a file.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   --output=1: task 1 on the terminal, no file      --output=2: a file with task 0 and task 1
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
mkdir runs
cd runs
for name in 0 1 2 3; do srun -Q -n2 --output=$name sh -c 'echo "task $SLURM_PROCID"' >>../terminal; done
expect "terminal" "task 0 task 1" "$(xargs <../terminal)"
expect "files" "2 3" "$(echo *)"
expect "in the file 2" "task 0 task 1" "$(sort 2 | xargs)"
