#!/usr/bin/env bash
# A program runs in new namespaces (`unshare --fork …`) and is killed: by the kernel for want of memory, by `kill -9`.
#
# One would guess: status 137, as from a shell, runuser and nsenter; unshare's own is 143 for SIGTERM.
# What happens: 1, with a word about sigprocmask. unshare wants to end by the same signal, cannot unblock SIGKILL, and
# takes that for a failure of its own. So just the kill that matters looks like an error of the program's.
# Seen with util-linux 2.38.1 of Debian 12. Needs root.
#
#   SIGTERM: 143     SIGSEGV: 139     SIGKILL: 1, "sigprocmask unblock failed"
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs util-linux=2.38.1-5+deb12u3
status() { # SIGNAL
	local status=0
	unshare --mount --fork sh -c "ulimit -c 0; kill -$1 \$\$; sleep 20" 2>words || status=$?
	echo "$status"
}
expect "SIGTERM" 143 "$(status TERM)"
expect "SIGSEGV" 139 "$(status SEGV)"
expect "SIGKILL" 1 "$(status KILL)"
expect "words" "unshare: sigprocmask unblock failed: Invalid argument" "$(tail -n 1 words)"
