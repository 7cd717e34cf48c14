#!/usr/bin/env bash
# The disk is full to which srun writes what its tasks print: `srun PROGRAM >FILE` or `srun --output=FILE`.
#
# One would guess: a line on standard error and a status other than 0, as the program itself would end, and cat and
# tee in a pipeline.
# What happens: the output is lost, without a word, and the status is 0: a script goes on with an empty or cut file.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   /bin/echo hi >/dev/full: 1     srun /bin/echo hi >/dev/full: 0, no words     srun --output=/dev/full: 0, no words
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
status() { "$@" 2>words >/dev/full && echo 0 || echo $?; }
expect "without srun" 1 "$(status /bin/echo hi)"
expect "srun >/dev/full" 0 "$(status srun -Q /bin/echo hi)"
expect "its words" "" "$(cat words)"
expect "srun --output=/dev/full" 0 "$(status srun -Q --output=/dev/full /bin/echo hi)"
expect "its words" "" "$(cat words)"
