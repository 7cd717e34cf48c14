#!/usr/bin/env bash
# `srun --export=PATH,LIST=a,b`: commas separate variables, so the value has to be quoted.
#
# One would guess: `--export="PATH,LIST='a,b'"` gives the program a,b, as a shell takes the quotes off.
# What happens: the quotes hold the comma, and stay: the program gets 'a,b' with both of them. Without them it gets a,
# and nothing says that b was taken for a variable. The value arrives as it is if srun itself has the variable.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   LIST=a,b: a      LIST='a,b': 'a,b'      LIST, from srun's environment: a,b
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
try() { srun --export="PATH,$1" printenv LIST; }
expect "without quotes" a "$(try LIST=a,b)"
expect "with quotes" "'a,b'" "$(try "LIST='a,b'")"
expect "from the environment" a,b "$(LIST=a,b try LIST)"
