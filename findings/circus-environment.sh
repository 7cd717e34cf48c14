#!/usr/bin/env bash
# circusd starts a program: [watcher:NAME] with cmd and nothing about variables, in a container whose image sets PATH
# and HOME and which was started with -e MODE=test.
#
# One would guess: the program has the environment of circusd, and what `env` adds, as with supervisord, runit, s6 and
# tini.
# What happens: it has none, not even PATH and HOME, so settings given to the container are lost, and a program that
# starts others finds them by luck. copy_env = True hands it on.
# Seen with circus 0.19.0.
#
#   env of MODE, HOME, PATH:    none     copy_env = True: all three
. "$(dirname "$0")/common.bash" || exit 2
pips circus==0.19.0
port=$((20000 + RANDOM % 9000))
mkfifo out
try() { # LINE…: of the watcher
	cat >circus.ini <<-END
		[circus]
		endpoint = tcp://127.0.0.1:$port
		pubsub_endpoint = tcp://127.0.0.1:$((port + 1))
		[watcher:one]
		cmd = $(command -v env) sh -c "env >$place/out; exec sleep 100"
		$(printf '%s\n' "$@")
	END
	MODE=test circusd circus.ini >log 2>&1 &
	sed -n 's/^\(HOME\|MODE\|PATH\)=.*/\1/p' out | sort | xargs
	kill $!
	wait $! || true
}
expect "without copy_env" "" "$(try)"
expect "copy_env" "HOME MODE PATH" "$(try 'copy_env = True')"
