#!/usr/bin/env bash
# A request goes to a service at a socket, and its answer comes back: echo REQUEST | socat - UNIX-CONNECT:SOCKET.
#
# One would guess: socat waits for the answer until the service closes, as `curl` does and as cat in a pipe does.
# What happens: half a second after the end of its input it ends, status 0 and no output. So it works as long as the
# service is quick, and loses answers of a machine with load. -t 60 is how long it waits.
# Seen with socat 1.7.4.4 of Debian 12.
#
#   an answer after 2 s: nothing, status 0     with -t 20: the answer
. "$(dirname "$0")/common.bash" || exit 2
debs socat=1.7.4.4-2 libwrap0=7.6.q-32
cat >service.py <<'END'
import socket
import time

with socket.socket(socket.AF_UNIX) as server:
    server.bind("socket")
    server.listen()
    print("ready", flush=True)
    for _ in range(2):
        with server.accept()[0] as other:
            other.recv(100)
            time.sleep(2)
            try:
                other.sendall(b"answer\n")
            except OSError:
                pass
END
mkfifo ready
python3 service.py >ready &
on_exit+=("kill $! 2>/dev/null")
read -r _ <ready
ask() { # OPTION…: status and output
	local status=0
	echo request | socat "$@" - UNIX-CONNECT:socket >out || status=$?
	echo "$status $(cat out)"
}
expect "without options" "0 " "$(ask)"
expect "with -t 20" "0 answer" "$(ask -t 20)"
