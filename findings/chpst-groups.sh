#!/usr/bin/env bash
# A service of runit or daemontools gives up root's rights: `chpst -u USER program`, `setuidgid USER program`. USER is
# in the group project of /etc/group, which shares the data.
#
# One would guess: the program has the groups of USER, as after su, runuser, setpriv --init-groups or a log-in; that
# is what is tried by hand.
# What happens: it has the first group alone, and the shared data is closed to it. s6-setuidgid of s6, which is called
# in the same way, gives it all groups. chpst takes them when each is named: -u USER:GROUP:GROUP.
# Seen with runit 2.1.2, daemontools 0.76, s6 2.11.3 and util-linux 2.38.1 of Debian 12. Needs root.
#
#   groups:   chpst, setuidgid: finder    s6-setuidgid, runuser, setpriv: finder project
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs runit=2.1.2-54 daemontools=1:0.76-8.1 s6=2.11.3.2-1 \
	libs6-2.11=2.11.3.2-1 libskarnet2.13=2.13.1.1-1 libexecline2.9=2.9.3.0-1
{ cat /etc/passwd; echo finder:x:4242:4242::/:/bin/sh; } >passwd
{ cat /etc/group; printf '%s\n' finder:x:4242: project:x:4343:finder; } >group
groups_by() { # COMMAND…: the groups of a program that it starts as finder
	unshare --mount sh -c 'mount --bind passwd /etc/passwd && mount --bind group /etc/group && exec "$@"' sh \
		"$@" id -Gn
}
expect "runuser" "finder project" "$(groups_by runuser -u finder --)"
expect "setpriv" "finder project" "$(groups_by setpriv --reuid=finder --regid=finder --init-groups)"
expect "s6-setuidgid" "finder project" "$(groups_by s6-setuidgid finder)"
expect "chpst -u" "finder" "$(groups_by chpst -u finder)"
expect "setuidgid" "finder" "$(groups_by setuidgid finder)"
expect "chpst, both" "finder project" "$(groups_by chpst -u finder:finder:project)"
