#!/usr/bin/env bash
# The exit status of `salloc COMMAND` when a signal has ended COMMAND.
#
# One would guess: 128 and the signal, as a shell has it: 137 for SIGKILL, 143 for SIGTERM.
# What happens: 0 for SIGKILL, as if the command had succeeded, and 1 for SIGTERM. So a script that
# looks at salloc's status does not notice a command that the kernel killed for want of memory.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   salloc sh -c 'kill -KILL $$': 0    salloc sh -c 'kill -TERM $$': 1
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
status() { local seen=0; salloc -Q -n1 sh -c "$1" || seen=$?; echo "$seen"; }
expect "command exits with 3" 3 "$(status 'exit 3')"
expect "command killed by SIGKILL" 0 "$(status 'kill -KILL $$')"
expect "command ended by SIGTERM" 1 "$(status 'kill -TERM $$')"
