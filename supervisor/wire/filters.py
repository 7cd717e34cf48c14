"""What rules of a network's packet filter are, at both ends of a container's network."""

PROGRAMS = ("nft", "iptables")
"""What makes rules, by what is tried first: newer systems have no iptables."""

ORIGINAL_DESTINATION = 80
"""SO_ORIGINAL_DST, and IP6T_SO_ORIGINAL_DST: linux/netfilter_ipv4.h."""

DOMAIN = 53
"""The port of name servers."""
