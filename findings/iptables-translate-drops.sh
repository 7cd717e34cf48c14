#!/usr/bin/env bash
# The rules of a node or of a container's network move from iptables to nftables with the tool for it:
# iptables-restore-translate -f RULES >FILE, nft -f FILE.
#
# One would guess: what cannot be translated ends it with an error, and its line; as a set does that is not there.
# What happens: a rule with a match that nftables lacks (string, recent) becomes a comment in the middle of the file,
# status 0 and not a word. nft takes the file: what was dropped passes.
# Seen with iptables 1.8.9 and nftables 1.0.6 of Debian 12. Needs root; it works in a network namespace of its own.
#
#   rules: 3     translated: status 0, no words     rules of nft: 1
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs iptables=1.8.9-2 libxtables12=1.8.9-2 libnftnl11=1.2.4-2 libmnl0=1.0.4-3 nftables=1.0.6-2+deb12u2 \
	libnftables1=1.0.6-2+deb12u2 libip4tc2=1.8.9-2 libip6tc2=1.8.9-2
export XTABLES_LIBDIR=$place/root/usr/lib/x86_64-linux-gnu/xtables
cat >rules <<'END_OF_RULES'
*filter
:INPUT ACCEPT [0:0]
-A INPUT -p tcp -m string --string bad --algo bm -j DROP
-A INPUT -m recent --name seen --rcheck --seconds 60 -j DROP
-A INPUT -p tcp --dport 22 -j ACCEPT
COMMIT
END_OF_RULES
status=0
root/usr/sbin/xtables-nft-multi iptables-restore-translate -f rules >translated 2>words || status=$?
expect "translated" "0, " "$status, $(cat words)"
expect "its rules" "add rule ip filter INPUT tcp dport 22 counter accept" "$(grep '^add rule' translated)"
expect "its comments" 2 "$(grep -c '^# -t filter -A INPUT' translated)"
expect "nft" 1 "$(unshare --net sh -c 'nft -f translated && nft list ruleset' | grep -cE 'accept$|drop$')"
