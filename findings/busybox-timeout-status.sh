#!/usr/bin/env bash
# A script in an image with busybox looks whether `timeout` has ended a program: `timeout 60 program`, status 124.
#
# One would guess: 124, as with GNU coreutils, of which busybox has the same options; the program did not finish.
# What happens: it is the status of the program, whatever that is. One that a signal ends is 143. One that takes
# SIGTERM, cleans up and ends with 0, as servers and supervisors do, is 0: cut off, and taken for done.
# Seen with busybox 1.35.0 and coreutils 9.1 of Debian 12.
#
#   timeout 1 sleep 20: GNU 124, busybox 143     with a trap that ends with 0: GNU 124, busybox 0
. "$(dirname "$0")/common.bash" || exit 2
debs busybox-static=1:1.35.0-4+deb12u1+b1 coreutils=9.1-1
status() { # COMMAND…
	local status=0
	"$@" >>words 2>&1 || status=$?
	echo "$status"
}
printf '%s\n' 'trap "exit 0" TERM' 'sleep 20 &' 'wait' >program
expect "GNU, sleep" 124 "$(status timeout 1 sleep 20)"
expect "busybox, sleep" 143 "$(status busybox timeout 1 sleep 20)"
expect "GNU, a program that cleans up" 124 "$(status timeout 1 sh program)"
expect "busybox, a program that cleans up" 0 "$(status busybox timeout 1 sh program)"
