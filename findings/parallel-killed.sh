#!/usr/bin/env bash
# GNU parallel keeps a list of what it has run: parallel --joblog LOG …, with a column Exitval. One of the commands is
# killed: by the kernel for want of memory, by `kill -9`.
#
# One would guess: Exitval is 137, as from a shell, and as the status of `parallel --halt now,fail=1` is then; so
# whoever looks for an Exitval other than 0 finds all that has failed.
# What happens: it is 0, as of a command that has succeeded. The 9 is in the next column, Signal. It is 137 only if a
# shell between them has called what was killed.
# Seen with GNU parallel 20221122 of Debian 12.
#
#   Exitval and Signal: exit 3: 3 0      killed: 0 9      a child of its shell is killed: 137 0
. "$(dirname "$0")/common.bash" || exit 2
debs parallel=20221122+ds-2
export HOME=$place
printf '#!/bin/sh\nexit 3\n' >fails
printf '#!/bin/sh\nkill -KILL $$\n' >killed
printf '#!/bin/sh\n./killed\nexit $?\n' >child
chmod +x fails killed child
status=0
parallel --will-cite -j 1 --joblog log ./{} ::: fails killed child >out 2>&1 || status=$?
expect "failed commands" 3 "$status"
expect "Exitval and Signal" "fails 3 0 killed 0 9 child 137 0" \
	"$(tail -n +2 log | awk '{sub("./", "", $9); print $9, $7, $8}' | xargs)"
status=0
parallel --will-cite --halt now,fail=1 ./{} ::: killed >out 2>&1 || status=$?
expect "status with --halt" 137 "$status"
