#!/usr/bin/env bash
# job_submit.lua looks whether the user has set a time limit, a number of processors, a comment, and takes the
# time limit away.
#
# One would guess: what is not set is nil, as in Lua; and to set nil is to take away.
# What happens: a comment is nil, a time limit 4294967294, processors of a task 65534, memory 1.8e19; `== nil` is
# never true for them, and `<` compares with the large number. To set time_limit to nil ends the script at that
# line: a word in the log of slurmctld, none for the user, and the job is taken with what was done before.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   nil 4294967294 65534; after d.time_limit = nil: the limit of 5 minutes stays, what follows is not done
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
debs liblua5.1-0=5.1.5-9
mkdir -p etc
cat >etc/job_submit.lua <<'END'
function slurm_job_submit(job, partitions, user)
	slurm.log_user("%s %.0f %.0f", tostring(job.comment), job.time_limit, job.cpus_per_task)
	if job.name == "nil" then
		job.comment = "before"
		job.time_limit = nil
		job.comment = "after"
	end
	return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user)
	return slurm.SUCCESS
end
END
slurm JobSubmitPlugins=lua
submit() { sbatch --hold --output=/dev/null "$@" --wrap true 2>&1 | sed -n 's/^sbatch: //p'; }
expect "nothing is set" "nil 4294967294 65534" "$(submit)"
expect "all is set" "words 5 1" "$(submit --comment=words --time=5 --cpus-per-task=1)"
expect "the limit is taken away" "nil 5 65534" "$(submit --job-name=nil --time=5)"
expect "the job" "Comment=before TimeLimit=00:05:00" \
	"$(scontrol show job 3 -o | grep -oE '(Comment|TimeLimit)=[^ ]*' | sort | xargs)"
expect "the log" 1 "$(grep -c 'number expected, got nil' log/slurmctld)"
