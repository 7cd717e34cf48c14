#!/usr/bin/env bash
# A list of tasks is worked through in parallel in a batch job, with pexec, xjobs or paexec of Debian. Every task fails.
#
# One would guess: a status other than 0, as with xargs -P (123), GNU parallel (the number of failures) and that of
# moreutils, so that the job is not COMPLETED and what depends on it does not begin.
# What happens: 0 with each of the three. xjobs has a line for each task with its status, the others say nothing.
# Seen with pexec 1.0~rc8, xjobs 20120412, paexec 1.1.1 and findutils 4.9.0 of Debian 12.
#
#   two tasks that end with 3:   xargs: 123     pexec: 0     xjobs: 0     paexec: 0
. "$(dirname "$0")/common.bash" || exit 2
debs pexec=1.0~rc8-4+b1 xjobs=20120412-1+b1 paexec=1.1.1-1 findutils=4.9.0-4
printf '#!/bin/sh\necho "$1" >>begun\nexit 3\n' >fail
chmod +x fail
status() { # COMMAND…: its status, and how many tasks began
	local status=0
	rm -f begun
	printf '%s\n' 1 2 >list
	"$@" <list >words 2>&1 || status=$?
	echo "$status $(wc -l <begun)"
}
expect "xargs: status, tasks" "123 2" "$(status xargs -n 1 -P 2 ./fail)"
expect "pexec: status, tasks" "0 2" "$(status pexec -n 2 -p "1 2" -e task -c -- './fail $task')"
expect "xjobs: status, tasks" "0 2" "$(status xjobs -j 2 -- ./fail)"
expect "paexec: status, tasks" "0 2" "$(status paexec -x -n 2 -c ./fail)"
