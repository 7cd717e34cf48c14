#!/usr/bin/env bash
# `srun --chdir=DIRECTORY` where the node has no such directory.
#
# One would guess: the step fails, as `env --chdir` does and as a container does in most engines.
# What happens: the task runs in /tmp. A line on standard error is all; the status is the task's.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   couldn't chdir to `/no/such': No such file or directory: going to /tmp instead
#   pwd prints /tmp, status 0
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
seen=0
srun -n1 --chdir=/no/such pwd >out 2>messages || seen=$?
expect "status" 0 "$seen"
expect "directory" /tmp "$(cat out)"
expect "words" "going to /tmp instead" "$(grep -o 'going to /tmp instead' messages | head -n 1)"
