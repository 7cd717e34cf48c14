#!/usr/bin/env bash
# mtree compares an unpacked root file system with the list that was made of it: mtree -f LIST -p ROOT. A file is gone.
#
# One would guess: status 2. So the manual: "2 if the file hierarchy did not match the specification"; and so it is for
# a file that has changed.
# What happens: a line "missing: ./a", and status 0. The same for a file that should not be there ("extra: c"). A
# script that looks at the status hears of a change, never of what was lost or put in.
# Seen with mtree-netbsd 20180822 of Debian 12.
#
#   changed: 2        missing: 0        extra: 0
. "$(dirname "$0")/common.bash" || exit 2
debs mtree-netbsd=20180822-7
mkdir tree
echo content | tee tree/a >tree/b
mtree -c -k type,size,sha256digest -p tree >list
compared() {
	local status=0
	mtree -f list -p tree >words || status=$?
	echo "$status $(xargs <words | cut -d ' ' -f 1-2)"
}
expect "as it was" "0 " "$(compared)"
echo more >>tree/a
expect "changed" "2 a: size" "$(compared)"
rm tree/a
expect "missing" "0 missing: ./a" "$(compared)"
echo content >tree/a
touch tree/c
expect "extra" "0 extra: c" "$(compared)"
