#!/usr/bin/env bash
# jq takes entries out of a list of config.json with `|= empty`.
#
# One would guess: all that are selected go.
# What happens: while it goes through the list, what is deleted moves the rest to the left, and the
# next entry is passed over: of neighbours every second one stays. `del(…)` takes all of them.
# Seen with jq 1.6 of Debian 12.
#
#   ["PATH=/bin","LD_A=1","LD_B=2","LD_C=3","B=1"] becomes ["PATH=/bin","LD_B=2","B=1"]
. "$(dirname "$0")/common.bash" || exit 2
debs jq=1.6-2.1+deb12u3 libjq1=1.6-2.1+deb12u3 libonig5=6.9.8-1
config='{"process": {"env": ["PATH=/bin", "LD_A=1", "LD_B=2", "LD_C=3", "B=1"]}}'
expect "with |= empty" '["PATH=/bin","LD_B=2","B=1"]' \
	"$(jq -c '(.process.env[] | select(startswith("LD_"))) |= empty | .process.env' <<<"$config")"
expect "with del" '["PATH=/bin","B=1"]' \
	"$(jq -c 'del(.process.env[] | select(startswith("LD_"))) | .process.env' <<<"$config")"
