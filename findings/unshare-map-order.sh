#!/usr/bin/env bash
# Users are mapped into a user namespace with `unshare --map-users=0,1000,1`.
#
# One would guess: user 0 inside is user 1000 outside, one of them. That is the order of /proc/PID/uid_map, newuidmap,
# the mappings of config.json, and podman's --uidmap.
# What happens: the other way round: 1000 inside is 0 outside. Later versions want 0:1000:1, with colons, inside
# first; they still take the commas, in this old order.
# Seen with util-linux 2.38.1 of Debian 12. Needs root.
#
#   --map-users=0,1000,1: uid_map is 1000 0 1
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs util-linux=2.38.1-5+deb12u3 uidmap=1:4.13+dfsg1-1+deb12u2
map() { unshare --user --map-users="$1" cat /proc/self/uid_map 2>words | xargs; }
expect "0,1000,1" "1000 0 1" "$(map 0,1000,1)"
