#!/usr/bin/env bash
# `runc list --format json` where no container is, read by jq or a program.
#
# One would guess: an empty list, as with `crun list`, `podman ps` and `ctr`; so a loop over it does nothing.
# What happens: the word null, status 0. `jq '.[]'` and a loop in Python fail with it, only on the day on which there
# is no container.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12, and jq 1.6. Needs root.
#
#   crun: []    runc: null    jq '.[].id': 5, "Cannot iterate over null"
. "$(dirname "$0")/common.bash" || exit 2
runtimes
debs jq=1.6-2.1+deb12u3 libjq1=1.6-2.1+deb12u3 libonig5=6.9.8-1
expect "crun" "[]" "$(crun list --format json | jq -c .)"
expect "runc" "null" "$(runc list --format json)"
status=0
runc list --format json | jq '.[].id' 2>words || status=$?
expect "a loop" "5 jq: error (at <stdin>:1): Cannot iterate over null (null)" "$status $(cat words)"
