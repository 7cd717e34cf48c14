#!/usr/bin/env bash
# proot runs a program in a root file system without root's rights: proot -r ROOT -b DATA:/data -w /work PROGRAM. DATA
# is mistyped, or the image has no /work.
#
# One would guess: an error, and PROGRAM does not run, as with chroot, bwrap, and -v and -w of every engine.
# What happens: a warning, and the program runs: without the data, in "/", and with its own status. So one that makes
# what it does not find writes into the root file system. And a program that a signal ended is 255, not 128 and more.
# Seen with proot 5.1.0 of Debian 12.
#
#   -b /mistyped:/data: runs, 0     -w /work: pwd is /, 0     kill -KILL $$: 255
. "$(dirname "$0")/common.bash" || exit 2
debs proot=5.1.0-1.3 libtalloc2=2.4.0-f2 busybox-static=1:1.35.0-4+deb12u1+b1
mkdir -p image/bin
cp root/bin/busybox image/bin/
ln -s busybox image/bin/sh
ln -s busybox image/bin/ls
try() { # OPTION… -- COMMAND: status and output
	local status=0
	proot -r image "${@:1:2}" /bin/sh -c "$3" >out 2>words || status=$?
	echo "$status $(xargs <out)"
}
expect "-b" "0 bin runs" "$(try -b "$place/mistyped:/data" 'ls /; echo runs')"
expect "words" 1 "$(grep -c 'warning.*mistyped' words)"
expect "-w" "0 /" "$(try -w /work pwd)"
expect "killed" "255 " "$(try -w / 'kill -KILL $$')"
