#!/usr/bin/env bash
# Files are put into an ext4 image without mounting it, and out of one: e2cp PROGRAM IMAGE:/bin/PROGRAM,
# e2cp IMAGE:/etc/CONFIG . (package e2tools).
#
# One would guess: a program stays one that may be executed, as with cp, docker cp and scp without -p, which leaves out
# owners and times alone; and a file that does not exist is an error.
# What happens: everything has mode 644 (without -p), so what was /init of the image does not start. What does
# not exist gets a line, and the status is 0; a directory that is missing in the image is made.
# Seen with e2tools 0.1.0 and e2fsprogs 1.47.0 of Debian 12.
#
#   mode 755: 644 in the image, with -p 755      e2cp IMAGE:/missing .: "/missing not found", 0
. "$(dirname "$0")/common.bash" || exit 2
debs e2tools=0.1.0-3 e2fsprogs=1.47.0-2+b2 libext2fs2=1.47.0-2+b2 libcom-err2=1.47.0-2+b2 libss2=1.47.0-2+b2
mke2fs -q -t ext4 image 4M >words 2>&1
printf '#!/bin/sh\n' >program
chmod 755 program
e2cp program image:/new/program
e2cp -p program image:/new/kept
mode() { debugfs -R "stat $1" image 2>>words | sed -n 's/.*Mode: *\([0-7]*\).*/\1/p'; }
expect "mode" 0644 "$(mode /new/program)"
expect "mode with -p" 0755 "$(mode /new/kept)"
status=0
e2cp image:/missing . >out 2>&1 || status=$?
expect "a missing file" "0 /missing not found" "$status $(cat out)"
