#!/usr/bin/env bash
# A user gets another name: usermod --login new old. The user has subordinate IDs in /etc/subuid and /etc/subgid, with
# which podman and others run containers without root.
#
# One would guess: usermod renames the user there too, as it does in /etc/passwd, /etc/shadow and the lists of members
# of /etc/group; its options add and take away such IDs, so it knows these files.
# What happens: both files keep the old name. The renamed user has no IDs, so containers do not start any more, and a new
# range would make the files of the old one inaccessible.
# Seen with passwd 4.13 (shadow) of Debian 12. Needs root.
#
#   old:100000:65536     after usermod --login new old: old:100000:65536
#   the groups of new: new, project
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs passwd=1:4.13+dfsg1-1+deb12u2
unset LD_LIBRARY_PATH
mkdir -p tree/etc
printf '%s\n' root:x:0:0::/root:/bin/sh old:x:1000:1000::/home/old:/bin/sh >tree/etc/passwd
printf '%s\n' root:x:0: old:x:1000: project:x:2000:old >tree/etc/group
printf '%s\n' 'root:*:1::::::' 'old:*:1::::::' >tree/etc/shadow
printf '%s\n' 'root:*::' 'old:*::' 'project:*::old' >tree/etc/gshadow
for file in subuid subgid; do echo old:100000:65536 >"tree/etc/$file"; done
: >tree/etc/login.defs
usermod --prefix "$place/tree" --login new old
expect "users" "root new" "$(cut -d : -f 1 tree/etc/passwd | xargs)"
expect "members of project" new "$(sed -n 's/^project:.*://p' tree/etc/group)"
expect "subuid" old:100000:65536 "$(<tree/etc/subuid)"
expect "subgid" old:100000:65536 "$(<tree/etc/subgid)"
