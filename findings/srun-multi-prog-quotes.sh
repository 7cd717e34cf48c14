#!/usr/bin/env bash
# A file for `srun --multi-prog` with a quoted argument: 0 sh -c "echo a b".
#
# One would guess: a line is split as a shell splits it; or, if not, none of a shell's signs is known.
# What happens: single quotes and backslashes are as in a shell, double quotes are like any letter: sh gets `"echo`,
# `a` and `b"`, and says "Unterminated quoted string".
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   0 program "a b" 'c d' e\ f:  ["a] [b"] [c d] [e f]
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
cat >program <<'END'
#!/bin/sh
printf '[%s] ' "$@"
END
chmod 755 program
echo "0 $place/program \"a b\" 'c d' e\\ f" >programs
expect "arguments" "[\"a] [b\"] [c d] [e f] " "$(srun -Q -n1 --multi-prog programs)"
