#!/usr/bin/env bash
# SIGTERM to bwrap while its command runs in a PID namespace of its own.
#
# One would guess: bwrap passes it on or the namespace ends with it; no command is left either way.
# What happens: the process that was called ends (143), but the other bwrap, which is the init of
# the namespace, stays, and so does the command. Only with --die-with-parent do all of them end.
# Seen with bubblewrap 0.8.0 of Debian 12. Needs root, or user namespaces for users.
#
#   after SIGTERM: status 143; the command reads and writes on
. "$(dirname "$0")/common.bash" || exit 2
debs bubblewrap=0.8.0-2+deb12u1
mkfifo out go
exec 5<>go
try() { # WAKE OPTION…: prints bwrap's status, and what its command does after the signal
	local wake=$1 pid status=0 line=
	shift
	bwrap "$@" --bind / / --unshare-pid sh -c 'exec 4>out; echo begun >&4; read -r _ <go; echo "goes on" >&4' &
	pid=$!
	exec 3<out
	read -r _ <&3
	kill -TERM "$pid"
	wait "$pid" || status=$?
	[[ $wake == no ]] || echo >&5
	read -r -t 20 line <&3 || line=ended # its end of the pipe is closed: nothing else ends it
	exec 3<&-
	echo "$status $line"
}
expect "without options" "143 goes on" "$(try yes)"
expect "with --die-with-parent" "143 ended" "$(try no --die-with-parent)"
