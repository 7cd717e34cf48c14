#!/usr/bin/env bash
# A credential of MUNGE is to hold for a day, for a job that waits: munge --ttl=86400.
#
# One would guess: it does, or munge refuses: it has an error for what it does not support, and its manual names no
# limit in seconds.
# What happens: it holds for an hour, status 0, not a word. What the receiver says after that is "Expired credential",
# and the job's clock is the first to be looked at. -1, the longest there is, is the same hour.
# Seen with MUNGE 0.5.15 of Debian 12. Needs root.
#
#   --ttl=600: 600      --ttl=86400: 3600, status 0
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs munge=0.5.15-2+deb12u1 libmunge2=0.5.15-2+deb12u1
chmod 711 "$place"
(umask 077 && head -c 1024 /dev/urandom >key)
munged --force --socket="$place/socket" --key-file=key --pid-file="$place/pid" --log-file="$place/log" \
	--seed-file="$place/seed" --num-threads=2 2>words || cannot "$(tail -n 1 words)"
on_exit+=('munged --socket="$place/socket" --pid-file="$place/pid" --stop >/dev/null')
lifetime() { # SECONDS
	munge --socket=socket --no-input --ttl="$1" 2>&1 | unmunge --socket=socket --keys=TTL | grep -o '[0-9]*$'
}
expect "ten minutes" 600 "$(lifetime 600)"
expect "a day" 3600 "$(lifetime 86400)"
expect "the longest" 3600 "$(lifetime -1)"
