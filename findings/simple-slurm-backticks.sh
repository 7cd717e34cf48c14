#!/usr/bin/env bash
# simple_slurm submits a command with $HOME, $(…), `…` or a backslash: Slurm().sbatch("…").
#
# One would guess: the job's script has these words, for its own shell to read: $HOME and $(…) do arrive as they are.
# What happens: the script goes through a here-document of another shell, and only each "$" is protected from that. So
# `…`, unlike $(…), is run where the job is submitted, and the script has its output; "\\" becomes "\".
# Seen with simple_slurm 0.3.6. sbatch is a script that keeps what it reads.
#
#   echo `echo here` $(echo there) $HOME 'a\\b': the script has: echo here $(echo there) $HOME 'a\b'
. "$(dirname "$0")/common.bash" || exit 2
pips simple_slurm==0.3.6
mkdir bin
printf '#!/bin/sh\ncat >%q\necho Submitted batch job 7\n' "$place/script" >bin/sbatch
chmod +x bin/sbatch
PATH=$place/bin:$PATH
cat >program.py <<'END'
from simple_slurm import Slurm

Slurm(job_name="job").sbatch(r"echo `echo here` $(echo there) $HOME 'a\\b'")
END
python program.py >/dev/null
expect "in the script" "echo here \$(echo there) \$HOME 'a\\b'" "$(grep here script)"
