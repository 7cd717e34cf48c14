#!/usr/bin/env bash
# A service that takes its socket from systemd is tried by hand or run in a container: MODE=test
# systemd-socket-activate -l PORT PROGRAM.
#
# One would guess: PROGRAM has the environment of who calls, and LISTEN_FDS, as with env, tini and systemfd; only a
# unit of systemd begins without.
# What happens: it has TERM, PATH, USER, HOME and LISTEN_*. MODE and LD_LIBRARY_PATH, virtual environments and proxies
# are gone, without a word. -E MODE hands a variable on.
# Seen with systemd 252 of Debian 12.
#
#   MODE in PROGRAM: not set      with -E MODE: test
. "$(dirname "$0")/common.bash" || exit 2
command -v systemd-socket-activate >/dev/null || cannot "there is no systemd-socket-activate"
version=$(systemd-socket-activate --version | sed -n '1s/^systemd \([0-9]*\) .*/\1/p')
[[ $version == 252 ]] || cannot "systemd is $version"
on_exit+=('kill $(jobs -p) 2>/dev/null')
echo 'echo "${MODE-not set} $LISTEN_FDS" >out' >program
mode() { # OPTION…: what MODE is in the program, which runs when somebody connects
	rm -f socket out
	mkfifo out
	MODE=test systemd-socket-activate -l "$place/socket" "$@" sh program 2>>words &
	local try
	for ((try = 0; try < 100; try++)); do
		[[ ! -S socket ]] || break
		sleep 0.1
	done
	python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("socket")'
	cat out
	wait
}
expect "without options" "not set 1" "$(mode)"
expect "-E MODE" "test 1" "$(mode -E MODE)"
