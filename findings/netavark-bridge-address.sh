#!/usr/bin/env bash
# Three containers are in a network of podman's. One of them ends.
#
# One would guess: the others notice nothing: the bridge between them, where their name server is, stays.
# What happens: the bridge has the lowest hardware address of its members, and another one when that member leaves.
# The others know the old one for some time, and all that they ask their name server until then is lost.
# Seen with netavark 1.4.0 of Debian 12.
#
#   hardware address of the bridge: changed; a program in a container: no answer from there
. "$(dirname "$0")/common.bash" || exit 2
root_only
if (($# == 0)); then
	debs netavark=1.4.0-3
	unshare --net "$here/${0##*/}" "$place/root/usr/lib/podman/netavark"
	exit
fi
netavark=$1
ip link set lo up
address() { ip -br link show bridge9 | tr -s ' ' | cut -d ' ' -f 3; }
for number in 2 3 4; do
	unshare --net sleep 60 &
	on_exit+=("kill $!")
	until [[ $(readlink "/proc/$!/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.05; done
	ln -s "/proc/$!/ns/net" "net$number"
	id=$(printf "$number%.0s" {1..64})
	cat >"$number.json" <<-END
		{"container_id": "$id", "container_name": "c$number",
		 "networks": {"net": {"static_ips": ["10.89.9.$number"], "interface_name": "eth0"}},
		 "network_info": {"net": {"name": "net", "id": "$id", "driver": "bridge", "internal": true,
		  "network_interface": "bridge9", "ipv6_enabled": false, "dns_enabled": false,
		  "subnets": [{"subnet": "10.89.9.0/24", "gateway": "10.89.9.1"}]}}}
	END
	"$netavark" --config "$place" --file "$number.json" setup "net$number" >words 2>&1 ||
		cannot "$(tail -n 1 words)"
done
cat >ask.py <<'END'
import socket

client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(1)
client.connect(("10.89.9.1", 53))
client.send(b"?")
try:
    print(client.recv(9).decode())
except TimeoutError:
    print("no answer")
END
cat >server.py <<'END'
import socket

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("10.89.9.1", 53))
while True:
    question, client = server.recvfrom(9)
    server.sendto(b"an answer", client)
END
python3 server.py &
on_exit+=("kill $!")
sleep 1
# the one whose end of the wire outside has the address that the bridge has
member=$(ip -br link show master bridge9 | tr -s ' ' | grep "$(address)" | cut -d @ -f 1)
for number in 2 3 4; do
	peer=$(nsenter --net="net$number" ip -br link show eth0 | sed 's/.*@if\([0-9]*\).*/\1/')
	[[ $(ip -o link show "$member") == "$peer:"* ]] && lowest=$number || other=$number
done
ask() { nsenter --net="net$other" python3 ask.py; }
expect "before" "an answer" "$(ask)"
before=$(address)
"$netavark" --config "$place" --file "$lowest.json" teardown "net$lowest" >words 2>&1 ||
	cannot "$(tail -n 1 words)"
[[ $(address) != "$before" ]] && now=changed || now="as before"
expect "hardware address of the bridge" changed "$now"
expect "when one has gone" "no answer" "$(ask)"
