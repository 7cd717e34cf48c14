#!/usr/bin/env bash
# A program in a container looks up another container by its name with a resolver that keeps answers, as nginx, envoy
# and Java do. The other one is made anew and has another address.
#
# One would guess: the program finds it within seconds: the server knows that addresses change at any time, and its
# answers last 0 to 600 seconds, as those of docker do.
# What happens: aardvark-dns says that its answer holds for a day, 86,400 seconds. Who keeps to it talks to the old
# address until then, which another container may have by now.
# Seen with aardvark-dns 1.4.0 of Debian 12 and dnspython 2.9.2; its file is as netavark writes it.
#
#   time to live of an answer: 86400; aardvark-dns itself has the new address after a second
. "$(dirname "$0")/common.bash" || exit 2
debs aardvark-dns=1.4.0-3
pips dnspython==2.9.2
port=$((20000 + RANDOM % 9000))
id=$(printf 'a%.0s' {1..64})
mkdir networks
printf '%s\n' 127.0.0.1 "$id 10.0.0.2  web" >networks/net
root/usr/lib/podman/aardvark-dns --config "$place/networks" -p "$port" run >words 2>&1
on_exit+=('kill "$(cat networks/aardvark.pid)"') # it goes on in the background
cat >program.py <<'END'
import sys
import time

import dns.message
import dns.query

query = dns.message.make_query("web", "A")
for _ in range(50):
    try:
        answer = dns.query.udp(query, "127.0.0.1", port=int(sys.argv[1]), timeout=1).answer[0]
    except (dns.exception.Timeout, OSError):
        continue
    if str(answer[0]) == sys.argv[2]:
        print(answer.ttl, answer[0])
        break
    time.sleep(0.1)
END
ask() { python program.py "$port" "$1" || cannot "aardvark-dns does not answer: $(tail -n 1 words)"; }
expect "answer" "86400 10.0.0.2" "$(ask 10.0.0.2)"
printf '%s\n' 127.0.0.1 "$id 10.0.0.3  web" >networks/net
kill -HUP "$(cat networks/aardvark.pid)"
expect "answer after netavark's signal" "86400 10.0.0.3" "$(ask 10.0.0.3)"
