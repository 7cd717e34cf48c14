#!/usr/bin/env bash
# A program prints at once, as on a terminal, and its output goes through a pipe: unbuffer PROGRAM (of expect). The
# program is killed: by the kernel for want of memory, by `kill -9`.
#
# One would guess: 137, as from a shell, script -e and timeout. A status of the program's own, 3, does come through.
# What happens: 0, without a word, for every signal. A job's script with `set -e` goes on as if all were done.
# Seen with expect 5.45.4 of Debian 12.
#
#   exit 3: 3       SIGKILL: 0       SIGSEGV: 0       script -e, SIGKILL: 137
. "$(dirname "$0")/common.bash" || exit 2
debs expect=5.45.4-2+b1 tcl-expect=5.45.4-2+b1 libtcl8.6=8.6.13+dfsg-2 tcl8.6=8.6.13+dfsg-2
libraries=$place/root/usr/lib/$(uname -m)-linux-gnu
export TCLLIBPATH=$place/tcl TCL_LIBRARY=$place/root/usr/share/tcltk/tcl8.6
mkdir tcl
echo "package ifneeded Expect 5.45.4 {load $libraries/libexpect.so.5.45.4}" >tcl/pkgIndex.tcl
status() { # COMMAND…: its status, and what it prints
	local status=0
	timeout 20 "$@" >words 2>&1 </dev/null || status=$?
	echo "$status $(<words)"
}
expect "exit 3" "3 " "$(status unbuffer sh -c 'exit 3')"
expect "SIGKILL" "0 " "$(status unbuffer sh -c 'kill -KILL $$')"
expect "SIGSEGV" "0 " "$(status unbuffer sh -c 'ulimit -c 0; kill -SEGV $$')"
expect "script -e" "137 " "$(status script -qec 'exec sh -c "kill -KILL \$\$"' /dev/null)"
