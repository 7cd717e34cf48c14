#!/usr/bin/env bash
# A container is called Web (podman run --name Web), and another one looks up that name; or a resolver asks for wEB, as
# those do that mix the case of letters to know an answer is for them.
#
# One would guess: its address. Case does not matter in DNS names (RFC 4343).
# What happens: aardvark-dns makes the names of containers small, and not those that are asked for. Any with a capital
# letter does not exist, also when the container has just this name; "web" does.
# Seen with aardvark-dns 1.4.0 of Debian 12 and dnspython 2.9.2; its file is as netavark writes it.
#
#   a container Web: web: 10.0.0.2     Web: NXDOMAIN
. "$(dirname "$0")/common.bash" || exit 2
debs aardvark-dns=1.4.0-3
pips dnspython==2.9.2
port=$((20000 + RANDOM % 9000))
mkdir networks
printf '%s\n' 127.0.0.1 "$(printf 'a%.0s' {1..64}) 10.0.0.2  Web" >networks/net
root/usr/lib/podman/aardvark-dns --config "$place/networks" -p "$port" run >words 2>&1
on_exit+=('kill "$(cat networks/aardvark.pid)"') # it goes on in the background
cat >program.py <<'END'
import sys

import dns.message
import dns.query
import dns.rcode

for name in "web", "Web":
    query = dns.message.make_query(name, "A")
    for _ in range(20):
        try:
            answer = dns.query.udp(query, "127.0.0.1", port=int(sys.argv[1]), timeout=1)
            break
        except (dns.exception.Timeout, OSError):
            pass
    print(name, dns.rcode.to_text(answer.rcode()), *(item for found in answer.answer for item in found))
END
python program.py "$port" >seen || cannot "aardvark-dns does not answer: $(tail -n 1 words)"
expect "web" "web NOERROR 10.0.0.2" "$(sed -n 1p seen)"
expect "Web" "Web NXDOMAIN" "$(sed -n 2p seen)"
