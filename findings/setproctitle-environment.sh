#!/usr/bin/env bash
# A tool finds out to which job or container a process belongs by its environment: SLURM_JOB_ID in /proc/PID/environ,
# ps e, environ() of psutil. The process has given itself a title with setproctitle, as workers of servers and of
# training do.
#
# One would guess: the environment is as it was when the process began; a title is the name or the arguments.
# What happens: it is gone. The kernel shows two neighbouring places of the process's memory as arguments and
# environment, and setproctitle writes the title over both, however short it is. The process itself has its variables,
# in a copy. SPT_NOENV=1 keeps the environment, and shortens titles.
# Seen with setproctitle 1.3.8 and psutil 7.2.2.
#
#   psutil: SLURM_JOB_ID 77; after setproctitle("worker"): not set      with SPT_NOENV=1: 77
. "$(dirname "$0")/common.bash" || exit 2
pips setproctitle==1.3.8 psutil==7.2.2
cat >program.py <<'END_OF_PROGRAM'
import os
import sys

import psutil
import setproctitle

before = psutil.Process().environ().get("SLURM_JOB_ID")
setproctitle.setproctitle("worker")
print(before, psutil.Process().environ().get("SLURM_JOB_ID"), os.environ["SLURM_JOB_ID"])
END_OF_PROGRAM
expect "before, after, in the process" "77 None 77" "$(env -i SLURM_JOB_ID=77 PATH="$PATH" python program.py)"
expect "SPT_NOENV" "77 77 77" "$(env -i SPT_NOENV=1 SLURM_JOB_ID=77 PATH="$PATH" python program.py)"
