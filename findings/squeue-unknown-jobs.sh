#!/usr/bin/env bash
# A script waits for jobs: `while squeue -h --jobs=LIST …`. squeue of one job that the controller has forgotten
# is an error, "Invalid job id specified", status 1.
#
# One would guess: so is squeue of two of them.
# What happens: with two or more numbers it succeeds with no line. A name of a user or a partition that does not
# exist is no error either: "Invalid user", status 0; for the partition not even that. A loop that ends with the
# status never ends for two jobs, and never begins for one.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   --jobs=99998: 1   --jobs=99998,99999: 0   --user=nobody-here: 0   --partition=none: 0   --nodelist=none: 1
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
status() { local seen=0; squeue -h "$@" >out 2>words || seen=$?; echo "$seen"; }
expect "one job" 1 "$(status --jobs=99998)"
expect "two jobs" 0 "$(status --jobs=99998,99999)"
expect "output" "" "$(cat out words)"
expect "partition" 0 "$(status --partition=none)"
expect "output" "" "$(cat out words)"
expect "user" 0 "$(status --user=nobody-here)"
expect "words" "squeue: error: Invalid user: nobody-here" "$(head -n 1 words)"
expect "node" 1 "$(status --nodelist=none)"
