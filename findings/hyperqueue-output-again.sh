#!/usr/bin/env bash
# HyperQueue's API for Python submits jobs, one after the other, from one directory, and says nothing about output.
#
# One would guess: each job's output is in a place of its own, as with `hq submit` (job-1/0.stdout, job-2/0.stdout).
# What happens: the files are called by the number of the task alone, 0.stdout and 0.stderr, in the working directory,
# and tasks are counted from 0 in each job. So each job replaces the output of the one before, without a word; two jobs
# that run at once write to one file.
# Seen with hyperqueue 0.27.0 of PyPI.
#
#   job 1 prints one, job 2 prints two: the only files are 0.stdout, with "two", and 0.stderr
. "$(dirname "$0")/common.bash" || exit 2
pips hyperqueue==0.27.0
mkdir work
cat >jobs.py <<-'END'
	import os
	from hyperqueue import Job, LocalCluster
	from hyperqueue.cluster import WorkerConfig

	os.chdir("work")
	with LocalCluster() as cluster:
	    cluster.start_worker(WorkerConfig(cores=1))
	    client = cluster.client()
	    for word in ("one", "two"):
	        job = Job()
	        job.program(["echo", word])
	        client.wait_for_jobs([client.submit(job)])
END
timeout 60 python jobs.py >log 2>&1 || cannot "the jobs do not run: $(tail -n 1 log)"
expect "files" "0.stderr 0.stdout" "$(ls work | xargs)"
expect "output" two "$(<work/0.stdout)"
