#!/usr/bin/env bash
# The rules of a network namespace are kept as JSON and put back: `nft -j list ruleset >FILE`, `nft -j -f FILE`.
#
# One would guess: they are the same again. It is the form for programs; libnftables makes and reads both forms.
# What happens: the comments of tables, chains and sets are not in it, though those of rules and elements are, nor is
# auto-merge of a set. So an address that is part of a range which the set has is refused after that, "interval
# overlaps with an existing one", where it was merged before. Without -j all comes back.
# Seen with nftables 1.0.6 of Debian 12. Needs root; it works in a network namespace of its own.
#
#   comments and auto-merge of table, chain and set:    text: 4    JSON: 0
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs nftables=1.0.6-2+deb12u2 libnftables1=1.0.6-2+deb12u2 libnftnl11=1.2.4-2 libmnl0=1.0.4-3 libjansson4=2.14-2 \
	libedit2=3.1-20221030-2 libxtables12=1.8.9-2
cat >rules <<'END'
table inet filter {
	comment "of jobs"
	set hosts {
		type ipv4_addr
		flags interval
		auto-merge
		comment "those let in"
		elements = { 10.0.0.0/24 comment "nodes" }
	}
	chain input {
		type filter hook input priority filter
		comment "to this host"
		ip saddr @hosts accept comment "a rule"
	}
}
END
cat >try <<'END'
set -e
nft -f rules
nft list ruleset >text
nft -j list ruleset >json
count() { nft list ruleset | grep -cE '^\s+(auto-merge|comment)'; }
nft flush ruleset
nft -f text
echo "$(count) $(nft add element inet filter hosts '{ 10.0.0.7 }' 2>&1 | sed -n 's/.*Error: //p')"
nft flush ruleset
nft -j -f json
echo "$(count || :) $(nft add element inet filter hosts '{ 10.0.0.7 }' 2>&1 | sed -n 's/.*Error: //p')"
END
unshare --net bash try >seen || cannot "rules of nftables are not to be had here"
expect "after text" "4 " "$(sed -n 1p seen)"
expect "after JSON" "0 interval overlaps with an existing one" "$(sed -n 2p seen)"
