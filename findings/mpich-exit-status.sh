#!/usr/bin/env bash
# The exit status of MPICH's mpiexec when two ranks fail, and when a signal ends a rank.
#
# One would guess: the status of one of the ranks, the first that fails or the highest, as with Open MPI's mpirun and
# srun; and 128 and the signal, as with those and a shell.
# What happens: the ranks' statuses are put together bit by bit (OR): of 1 and 6 it makes 7, which no rank had, so a
# table of a program's own statuses misleads. And SIGKILL is 9, SIGTERM 15, as if the program had said `exit 9`.
# Seen with MPICH 4.0.2 of Debian 12.
#
#   exit 1, exit 2: 3      exit 1, exit 6: 7      kill -KILL $$: 9      exit 9: 9
. "$(dirname "$0")/common.bash" || exit 2
debs mpich=4.0.2-3+b1 libslurm38=22.05.8-4+deb12u3 libhwloc15=2.9.0-1
status() { mpiexec.hydra "$@" >words 2>&1 </dev/null && echo 0 || echo $?; }
expect "exit 1, exit 2" 3 "$(status -n 2 sh -c 'exit $((PMI_RANK + 1))')"
expect "exit 1, exit 6" 7 "$(status -n 1 sh -c 'exit 1' : -n 1 sh -c 'exit 6')"
expect "kill -KILL \$\$" 9 "$(status -n 1 sh -c 'kill -KILL $$')"
expect "kill -TERM \$\$" 15 "$(status -n 1 sh -c 'kill -TERM $$')"
expect "exit 9" 9 "$(status -n 1 sh -c 'exit 9')"
