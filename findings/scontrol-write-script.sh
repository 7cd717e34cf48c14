#!/usr/bin/env bash
# The script of a job is fetched from the controller: scontrol write batch_script JOB FILE, or without FILE, into
# slurm-JOB.sh.
#
# One would guess: a file that is there is not overwritten without a question, or is only with --force, as sbcast has
# it; and for a job that does not exist, the status is not 0, as of `scontrol show job` and of all its other requests.
# What happens: the file is replaced; and for an unknown job there is a line, no file, and status 0: a script that
# saves all scripts before an upgrade goes on with `set -e`, and an older FILE is taken for the job's.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   write batch_script 9999 FILE: status 0, no file     show job 9999: status 1     onto a file: replaced
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
job=$(sbatch --parsable --hold --output=/dev/null --wrap='echo the script')
echo notes >file
status() { # ARGUMENT…: of scontrol
	local status=0
	scontrol "$@" >>words 2>&1 || status=$?
	echo "$status"
}
expect "onto a file" 0 "$(status write batch_script "$job" file)"
expect "what it has" "echo the script" "$(tail -n 1 file)"
expect "show, of an unknown job" 1 "$(status show job 9999)"
expect "write, of an unknown job" 0 "$(status write batch_script 9999 none)"
expect "words" "job script retrieval failed: Invalid job id specified" "$(tail -n 1 words)"
expect "files" "" "$(ls none 2>>words)"
