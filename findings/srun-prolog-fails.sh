#!/usr/bin/env bash
# srun has a prolog, SrunProlog of slurm.conf or --prolog, which looks whether a program may run now: a licence, a
# mounted file system. It fails.
#
# One would guess: the program is not started, and srun ends with a status other than 0, as with a TaskProlog that fails
# and as srun's words say: "srun prolog failed rc = 1. Aborting step."
# What happens: the program is started when the prolog has failed, and is killed soon after. A short one has done its
# work by then, and srun ends with 0; another one has begun its work, and leaves it half done (137).
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   a prolog that fails, touch FILE; sleep 5: FILE is there, 137      echo: its output, 0
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
printf '#!/bin/sh\nexit 1\n' >prolog
chmod +x prolog
slurm
status=0
srun --prolog="$place/prolog" sh -c "touch $place/begun; sleep 5; touch $place/done" 2>words || status=$?
expect "status" 137 "$status"
expect "words" 1 "$(grep -c 'srun prolog failed rc = 1. Aborting step' words)"
expect "what it has done" begun "$(find . -maxdepth 1 "(" -name begun -o -name done ")" -printf "%P")"
srun --prolog="$place/prolog" echo ran >out 2>words
expect "echo" ran "$(cat out)"
status=0
srun --task-prolog="$place/prolog" touch "$place/task" 2>words || status=$?
expect "a TaskProlog that fails" "1 no" "$status $([[ -e task ]] && echo yes || echo no)"
