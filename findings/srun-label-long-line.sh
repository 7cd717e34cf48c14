#!/usr/bin/env bash
# `srun --label` before each line of output puts the number of its task. A task writes a long line, such as a record of
# JSON.
#
# One would guess: one number before one line, however long, so that `sed 's/^[0-9]*: //'` gives back what the task
# wrote.
# What happens: a line of more than 1024 bytes becomes several lines, each with the number before it, and nothing tells
# the new ends of lines from the task's own.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   a line of 3000 bytes: 1024, 1024 and 952 bytes      without --label: 3000
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
lengths() { sed 's/^0: //' | awk '{print length}' | xargs; }
expect "without --label" 3000 "$(srun printf '%03000d\n' 0 | lengths)"
expect "with --label" "1024 1024 952" "$(srun --label printf '%03000d\n' 0 | lengths)"
