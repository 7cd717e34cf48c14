#!/usr/bin/env bash
# A cluster without a database keeps a line for each job that has ended (JobCompType=jobcomp/filetxt), and `sacct
# --completion` reads it. A job is called "my job": sbatch --job-name="my job".
#
# One would guess: a job of this name, COMPLETED; the same Slurm writes and reads the file, so it can tell a value's
# end.
# What happens: a value ends at the first space. The name is "my", and the state, which follows it, is empty, so the
# job is in no list of those that have failed, or completed. A line on standard error says "Unknown type", the status
# is 0. A name such as "my NodeCnt=9" changes the fields of its job.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   sacct -c --format=jobid,jobname,state: 1|good|COMPLETED     2|my|     with --state=CD: 1 alone
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm JobCompType=jobcomp/filetxt "JobCompLoc=$place/completed"
sbatch -Q --wait --job-name=good --output=/dev/null --wrap=true
sbatch -Q --wait --job-name="my job" --output=/dev/null --wrap=true
for ((try = 0; try < 100; try++)); do
	[[ $(grep -c JobId= completed) != 2 ]] || break
	sleep 0.1
done
listed() {
	local status=0
	sacct --completion --noheader --parsable2 --format=jobid,jobname,state "$@" >out 2>words || status=$?
	echo "$(xargs <out), status $status"
}
expect "in the file" "Name=my job JobState=COMPLETED" "$(grep -o 'Name=my.*COMPLETED' completed)"
expect "sacct" "1|good|COMPLETED 2|my|, status 0" "$(listed)"
expect "words" "Unknown type" "$(grep -o -m 1 'Unknown type' words)"
