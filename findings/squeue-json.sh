#!/usr/bin/env bash
# `squeue --json --jobs=JOB`, for the exit status of a job that ended with 3.
#
# One would guess: one job, with "exit_code": 3. `squeue --jobs=JOB` has one line.
# What happens: all jobs are there, those that have ended long ago too: with --json every filter is
# passed over without a word. And exit_code is what wait(2) gives, 768 for 3, so that 1 is 256 and 9
# means SIGKILL.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   of three jobs, --jobs=3 --states=running --json: 3 jobs; exit codes 0 0 768
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
for status in 0 0 3; do
	sbatch -Q --wait --output=/dev/null --wrap "exit $status" || true
done
expect "without --json" "" "$(squeue -h --jobs=3 --states=running)"
squeue --jobs=3 --states=running --json >jobs 2>words
expect "words" "" "$(cat words)"
cat >program.py <<'END'
import json

with open("jobs") as file:
    print(*sorted(f"{job['job_id']}:{job['exit_code']}" for job in json.load(file)["jobs"]))
END
expect "with --json" "1:0 2:0 3:768" "$(python3 program.py)"
