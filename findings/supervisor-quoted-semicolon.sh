#!/usr/bin/env bash
# supervisord runs a command with a ";" in quotes: command=sh -c "cd /srv ; exec ./server".
#
# One would guess: the quotes keep it; a comment of an INI file begins at the begin of a line, and supervisord splits
# the command as a shell does.
# What happens: " ;" begins a comment wherever it stands, before quotes are looked at. "No closing quotation", says the
# log, and the program is never started; in `environment=` the same is an error of the file. Without the space before it
# (";exec") all is well. Where no quotes are needed (find -exec … ;) the rest is cut off without a word.
# Seen with supervisor 4.3.0.
#
#   command=sh -c "echo a ; echo b": No closing quotation    "echo a; echo b": a b
. "$(dirname "$0")/common.bash" || exit 2
pips supervisor==4.3.0
try() { # COMMAND: what it has printed, or what the log says
	rm -rf out log
	cat >conf <<-END
		[supervisord]
		nodaemon=true
		user=$(id -un)
		logfile=$place/log
		pidfile=$place/pid
		[program:job]
		command=$1
		autorestart=false
		startsecs=0
		startretries=0
		stdout_logfile=$place/out
	END
	supervisord -c conf >/dev/null 2>&1 &
	local pid=$! try
	for ((try = 0; try < 150; try++)); do
		! grep -qE 'exited: job|gave up: job|spawnerr' log 2>/dev/null || break
		sleep 0.1
	done
	kill "$pid"
	wait "$pid" || true
	[[ ! -s out ]] || xargs <out
	sed -n 's/.*\(No closing quotation\).*/\1/p' log | sort -u
}
expect "with ' ;'" "No closing quotation" "$(try 'sh -c "echo a ; echo b"')"
expect "with ';'" "a b" "$(try 'sh -c "echo a; echo b"')"
expect "without quotes" "a" "$(try 'echo a ; b')"
