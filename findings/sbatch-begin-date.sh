#!/usr/bin/env bash
# A job is to begin on a day that does not exist, as a script makes it that adds a month or takes the 31st:
# sbatch --begin=2031-02-30T10:00. Another one is to have begun an hour ago: --begin=now-3600.
#
# One would guess: "Invalid --begin specification", as for hour 25, month 13 and `date --date=2031-02-30`.
# What happens: both are taken without a word. The first begins two days later, on March 2; --deadline does the same.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   2031-02-30T10:00: 2031-03-02T10:00:00      2031-04-31: 2031-05-01T00:00:00      2031-13-01: refused
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
begins() { # TIME
	local job
	job=$(sbatch --parsable --output=/dev/null --begin="$1" --wrap true 2>words) || { echo refused; return; }
	scontrol show job "$job" | sed -n 's/.*EligibleTime=\(\S*\).*/\1/p'
}
expect "February 30" 2031-03-02T10:00:00 "$(begins 2031-02-30T10:00)"
expect "April 31" 2031-05-01T00:00:00 "$(begins 2031-04-31)"
expect "month 13" refused "$(begins 2031-13-01)"
expect "hour 25" refused "$(begins 2031-02-28T25:00)"
job=$(sbatch --parsable --output=/dev/null --begin=now-3600 --wrap true)
expect "an hour ago" 1 "$(squeue -h -t all --jobs="$job" | wc -l)"
