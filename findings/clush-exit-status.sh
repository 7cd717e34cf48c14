#!/usr/bin/env bash
# A command is run on many nodes, and fails on each: clush -w NODES COMMAND.
#
# One would guess: a status other than 0, as with ssh, which it calls, and with srun, parallel-ssh and ansible; so a
# script with `set -e` ends.
# What happens: 0, also for nodes that cannot be reached; lines on standard error tell. With -S it is the highest
# status of all.
# Seen with ClusterShell 1.9.1 of Debian 12; it starts a program here instead of ssh (-R exec).
#
#   exit 3 on node1, exit 4 on node2: 0, "clush: node1: exited with exit code 3"       with -S: 4
. "$(dirname "$0")/common.bash" || exit 2
debs clustershell=1.9.1-1 python3-clustershell=1.9.1-1 python3-yaml=6.0-3+b2 libyaml-0-2=0.2.5-1
export PYTHONPATH=$place/root/usr/lib/python3/dist-packages
status() { # OPTION…
	local status=0
	clush "$@" -R exec -w 'node[1-2]' 'n=%n; exit $((3 + n))' >out 2>words || status=$?
	echo "$status"
}
expect "clush" 0 "$(status)"
expect "words" "clush: node1: exited with exit code 3 clush: node2: exited with exit code 4" "$(sort words | xargs)"
expect "clush -S" 4 "$(status -S)"
