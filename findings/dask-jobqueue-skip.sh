#!/usr/bin/env bash
# Workers of Dask become jobs of Slurm with dask-jobqueue, on a cluster that sets the time limits itself, so the line
# with -t is not wanted: SLURMCluster(cores=8, queue="gpu-test", job_directives_skip=["-t"]).
#
# One would guess: the line "#SBATCH -t …" is left out of the script.
# What happens: each line is left out that has "-t" anywhere: --cpus-per-task=8 as well, always, and the partition, if
# its name is such as gpu-test. The job gets one processor in the default partition, and the worker starts its eight
# threads on it, since that is in the command. With "-n" it is an account or a partition whose name has -n in it. "-t ",
# with a blank, does what was meant.
# Seen with dask-jobqueue 0.9.0, dask 2026.8.0 and distributed 2026.8.0 of PyPI.
#
#   ["-t"]: -J -n 1 --mem=8G, --nthreads 8     ["-t "]: -J -p gpu-test -n 1 --cpus-per-task=8 --mem=8G
. "$(dirname "$0")/common.bash" || exit 2
pips dask-jobqueue==0.9.0 dask==2026.8.0 distributed==2026.8.0
cat >program.py <<'END_OF_PROGRAM'
import sys

from dask_jobqueue import SLURMCluster

skip = sys.argv[1:]
with SLURMCluster(
    cores=8,
    processes=1,
    memory="8GiB",
    queue="gpu-test",
    interface="lo",
    scheduler_options={"dashboard_address": None},
    job_directives_skip=skip,
) as cluster:
    print(cluster.job_script())
END_OF_PROGRAM
lines() { # TEXT…: those of sbatch in the script without them
	python program.py "$@" >script 2>words || cannot "no script: $(tail -n 1 words)"
	sed -n 's/^#SBATCH //p' script | xargs
}
whole="-J dask-worker -p gpu-test -n 1 --cpus-per-task=8 --mem=8G"
expect "without it" "$whole -t 00:30:00" "$(lines)"
expect '["-t "]' "$whole" "$(lines '-t ')"
expect '["-t"]' "-J dask-worker -n 1 --mem=8G" "$(lines -t)"
expect "the command" "--nthreads 8" "$(grep -o -e '--nthreads [0-9]*' script)"
