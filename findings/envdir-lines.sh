#!/usr/bin/env bash
# A directory with a file for each variable, such as a secret that Kubernetes mounts, becomes the environment of a
# program: envdir of daemontools, chpst -e of runit.
#
# One would guess: the variable is what the file has, without the newline at its end, as with $(cat FILE); an empty file
# is an empty variable.
# What happens: only the first line counts, so of a key in PEM it is "-----BEGIN …", and blanks and tabs at its end
# are gone. An empty file takes the variable away. s6-envdir does so too.
# Seen with daemontools 0.76, runit 2.1.2 and s6 2.11.3 of Debian 12.
#
#   KEY of "first\nsecond\n": first      PAD of "a b  ": "a b"      EMPTY=was, and an empty file: not set
. "$(dirname "$0")/common.bash" || exit 2
debs runit=2.1.2-54 daemontools=1:0.76-8.1 s6=2.11.3.2-1 \
	libs6-2.11=2.11.3.2-1 libskarnet2.13=2.13.1.1-1 libexecline2.9=2.9.3.0-1
mkdir variables
printf 'first\nsecond\n' >variables/KEY
printf 'a b  ' >variables/PAD
: >variables/EMPTY
export EMPTY=was
for command in envdir "chpst -e" s6-envdir; do
	# shellcheck disable=SC2016,SC2086
	expect "$command" "[first] [a b] [not set]" \
		"$($command variables sh -c 'echo "[$KEY] [$PAD] [${EMPTY-not set}]"')"
done
