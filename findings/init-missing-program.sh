#!/usr/bin/env bash
# The exit status of a container's init when its program is missing or may not be executed.
#
# One would guess: 127 and 126, as with a shell, env, nohup and timeout, so that whoever waits can tell
# a wrong image from a program that has failed.
# What happens: so with tini alone. catatonit, which podman --init uses, ends with 1 and dumb-init with 2,
# like a program that ran and failed.
# Seen with tini 0.19.0, catatonit 0.1.7 and dumb-init 1.2.5 of Debian 12.
#
#   missing, not executable:   tini 127, 126   catatonit 1, 1   dumb-init 2, 2
. "$(dirname "$0")/common.bash" || exit 2
debs tini=0.19.0-1+b3 catatonit=0.1.7-1+b2 dumb-init=1.2.5-2
touch text
status() { local seen=0; "$@" >>words 2>&1 || seen=$?; echo "$seen"; }
try() { echo "$(status "$@" sh -c 'exit 3') $(status "$@" "$place/missing") $(status "$@" "$place/text")"; }
expect "tini" "3 127 126" "$(try tini -s --)"
expect "catatonit" "3 1 1" "$(try catatonit --)"
expect "dumb-init" "3 2 2" "$(try dumb-init)"
