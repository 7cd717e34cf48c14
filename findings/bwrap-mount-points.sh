#!/usr/bin/env bash
# bwrap puts a directory where none is: --bind PROJECT /srv --bind DATA /srv/in/one, and PROJECT has no directory
# "in".
#
# One would guess: an error, as from mount(8); or a place that is there for this call only, since the file system of
# bwrap is a new one.
# What happens: the directories are made in PROJECT, on the host, and stay. Those on the way have mode 700, whatever
# the umask, so the others who share PROJECT find what they cannot enter. For a file it is an empty file.
# Seen with bubblewrap 0.8.0 of Debian 12. Needs root, or user namespaces for users.
#
#   in PROJECT afterwards: 700 in, 755 in/one, an empty file
. "$(dirname "$0")/common.bash" || exit 2
debs bubblewrap=0.8.0-2+deb12u1
mkdir project data
echo data >data/file
umask 0
status=0
bwrap --ro-bind / / --tmpfs /srv --bind project /srv --bind data /srv/in/one --ro-bind data/file /srv/file \
	cat /srv/in/one/file >out 2>words || status=$?
[[ $status == 0 ]] || cannot "$(tail -n 1 words)"
expect "in the sandbox" data "$(cat out)"
expect "afterwards" "700 in 755 in/one" "$(cd project && stat -c '%a %n' in in/one | xargs)"
expect "file" "0" "$(stat -c '%s' project/file)"
