#!/usr/bin/env bash
# A script makes the names of the nodes' InfiniBand interfaces of a list, for a host file: scontrol show hostnames
# 'node[1-3]-ib'.
#
# One would guess: node1-ib, node2-ib and node3-ib, as with nodeset of ClusterShell, hostlist of Python and bash's
# {1..3}; and for anything else, a status other than 0.
# What happens: nothing may stand after the last bracket: "Invalid hostlist", and the status is 0, as for a range such
# as [3-1]. So with `set -e` the script goes on, with an empty host file.
# Seen with Slurm 22.05.8 and ClusterShell 1.9.1 of Debian 12. Needs root.
#
#   nodeset -e: node1-ib node2-ib node3-ib       scontrol: nothing, status 0
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
debs clustershell=1.9.1-1 python3-clustershell=1.9.1-1 python3-yaml=6.0-3+b2
slurm
export PYTHONPATH=$place/root/usr/lib/python3/dist-packages
names() { # LIST
	local status=0
	scontrol show hostnames "$1" >out 2>words || status=$?
	echo "$status $(xargs <out)"
}
expect "nodeset" "node1-ib node2-ib node3-ib" "$(nodeset -e 'node[1-3]-ib')"
expect "a usual list" "0 node1 node2 node3" "$(names 'node[1-3]')"
expect "with a suffix" "0 " "$(names 'node[1-3]-ib')"
expect "words" "Invalid hostlist: node[1-3]-ib" "$(cat words)"
expect "a range that is none" "0 " "$(names 'node[3-1]')"
