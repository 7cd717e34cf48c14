#!/usr/bin/env bash
# `scancel` of a job of `salloc COMMAND`, while COMMAND runs.
#
# One would guess: salloc ends COMMAND, and itself with a status other than 0.
# What happens: without a terminal, COMMAND gets no signal. It runs on without its job, for as long as
# it likes, and salloc waits for it and ends with its status, 0. With -K it is told.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   without -K: "goes on", status 0      with -K: "SIGTERM", status 9
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
mkfifo begun
try() { # OPTION…
	local seen=0
	salloc -Q -n1 "$@" sh -c '
		trap "echo SIGTERM; exit 9" TERM
		echo >begun
		while [ -n "$(squeue -h)" ]; do sleep 0.1; done
		sleep 2
		echo goes on' </dev/null >out 2>>messages &
	read -r _ <begun
	scancel "$(squeue -h -o %i)"
	wait $! || seen=$?
	echo "$(cat out) $seen"
}
expect "without -K" "goes on 0" "$(try)"
expect "with -K" "SIGTERM 9" "$(try -K)"
