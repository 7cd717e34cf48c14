#!/usr/bin/env bash
# A waiting job is held and released again (scontrol hold, scontrol release). Priorities are those of a Slurm that is
# not told otherwise (PriorityType=priority/basic): first come, first served.
#
# One would guess: the job is again where it was; its number and its time of submission are the same.
# What happens: it goes behind every job that is there, as if it were new, without a word. `scontrol update`
# of its time limit leaves it in its place.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   first second third      after hold and release of first: second third first
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
submit() { sbatch --parsable --ntasks=4 --output=/dev/null --job-name="$1" --wrap='sleep 100'; }
submit runs >job
until [[ $(squeue -h -o %t) == R ]]; do sleep 0.1; done
first=$(submit first)
submit second >job
submit third >job
order() { squeue -h --states=PENDING --sort=-Q -o '%j' | xargs; }
expect "as they came" "first second third" "$(order)"
scontrol update JobId="$first" TimeLimit=5
expect "after an update" "first second third" "$(order)"
scontrol hold "$first"
scontrol release "$first"
expect "after hold and release" "second third first" "$(order)"
