#!/usr/bin/env bash
# Standard input of ranks under MPICH's mpiexec, which is called with </dev/null.
#
# One would guess: rank 0 gets what mpiexec gets, and the others read nothing: an end at once, as with Open MPI, or
# the same as rank 0, as with srun.
# What happens: rank 0 sees the end of /dev/null. The others have a pipe that nobody writes to and nobody closes while
# they run, so a rank that reads its input, as an interpreter without arguments or `cat` does, waits for ever.
# Who runs such a program gives it </dev/null in a shell of its own.
# Seen with MPICH 4.0.2 of Debian 12.
#
#   mpiexec -n 2 cat </dev/null: rank 0 ends, rank 1 reads until it is killed
. "$(dirname "$0")/common.bash" || exit 2
debs mpich=4.0.2-3+b1 libslurm38=22.05.8-4+deb12u3 libhwloc15=2.9.0-1
# timeout says 124 if cat still read.
mpiexec.hydra -n 2 sh -c 'timeout 3 cat; echo "$PMI_RANK $?"' </dev/null >seen
expect "cat in ranks 0 and 1, each for 3 s at most" "0 0,1 124" "$(sort seen | paste -sd,)"
mpiexec.hydra -n 2 sh -c 'timeout 3 cat </dev/null; echo "$PMI_RANK $?"' </dev/null >seen
expect "with </dev/null of their own" "0 0,1 0" "$(sort seen | paste -sd,)"
