#!/usr/bin/env bash
# `scontrol --oneliner show job`, read line by line, where a job's comment has two lines, as one does that a workflow
# makes of a message or of JSON.
#
# One would guess: one line for each job, as the option says: a line break within a value is escaped or made a space.
# What happens: it is printed as it is. The record has two lines, and what follows in the comment looks like fields of
# the job, or like another job. The reason of a node behaves the same. squeue -o %k has two lines as well.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   lines of one held job: 2; JobState: PENDING DONE
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
sbatch -Q --hold --comment=$'first\nJobState=DONE' --wrap true
scontrol --oneliner show job 1 >seen
expect "lines" 2 "$(sed '/^$/d' seen | wc -l)"
expect "states" "JobState=PENDING JobState=DONE" "$(grep -o 'JobState=[A-Z]*' seen | xargs)"
expect "lines of squeue -o %k" 2 "$(squeue -h -o %k | wc -l)"
scontrol update nodename=node state=drain reason=$'first\nState=UP'
expect "states of the node" "State=IDLE+DRAIN State=UP" \
	"$(scontrol --oneliner show node node | grep -oE '\bState=[A-Z+]*' | xargs)"
