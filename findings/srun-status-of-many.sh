#!/usr/bin/env bash
# The exit status of srun when its tasks end in different ways: one with 200, one killed (SIGKILL, as when memory is
# short).
#
# One would guess: "the highest exit code of all tasks", as the manual page says; a signal counts as 128 and its number,
# so it is 200, as with `exit 200` beside `exit 137`.
# What happens: 137. A task that a signal has ended goes before all others, whatever their status is. And a signal of
# lower number does not: 143 (SIGTERM) is kept where another was killed with SIGKILL, which is the reason for it.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   200 and SIGKILL: 137     200 and exit 137: 200     SIGKILL and SIGTERM: 143
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
try() { # COMMAND0 COMMAND1: of two tasks; prints the status of srun
	local status=0
	srun -Q -n2 sh -c 'if [ "$SLURM_PROCID" = 0 ]; then eval "$0"; else eval "$1"; fi' "$@" 2>words || status=$?
	echo "$status"
}
expect "200, SIGKILL" 137 "$(try 'exit 200' 'kill -KILL $$')"
expect "SIGKILL, 200" 137 "$(try 'kill -KILL $$' 'sleep 1; exit 200')"
expect "200, 137" 200 "$(try 'exit 200' 'exit 137')"
expect "SIGKILL, SIGTERM" 143 "$(try 'kill -KILL $$' 'kill -TERM $$')"
