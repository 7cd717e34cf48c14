#!/usr/bin/env bash
# hwloc-calc prints the processors of a core as a mask or, with -I pu, as a list, for taskset, cpuset.cpus or
# srun --cpu-bind.
#
# One would guess: both are the kernel's numbers; 0x11 and 0,4 are one thing.
# What happens: the mask has the kernel's numbers, the list hwloc's own, which count along the cores. Where the
# kernel numbers the first threads of all cores first, as most servers do, the list binds to two cores
# instead of one. A mask that is given is read by the kernel's numbers, and its list is again in hwloc's.
# --po makes them the kernel's.
# Seen with hwloc 2.9.0 of Debian 12, for a machine that is described on the command line.
#
#   core:0: 0x00000011     -I pu core:0: 0,1     -I pu 0x11: 0,1     --po -I pu core:0: 0,4
. "$(dirname "$0")/common.bash" || exit 2
debs hwloc=2.9.0-1 libhwloc15=2.9.0-1
calc() { hwloc-calc -i 'pack:2 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)' "$@" 2>>words; }
expect "mask" 0x00000011 "$(calc core:0)"
expect "list" 0,1 "$(calc -I pu core:0)"
expect "list of the mask" 0,1 "$(calc -I pu 0x11)"
expect "mask of that list" 0x00000003 "$(calc --pi pu:0 pu:1)"
expect "list with --po" 0,4 "$(calc --po -I pu core:0)"
