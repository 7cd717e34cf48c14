#!/usr/bin/env bash
# A container with a user of its own, few capabilities and no network is to have a second one like it:
# podman container clone web web2.
#
# One would guess: a container with the same options and another name; the manual calls it the same configuration, and
# its options are there to change something of it.
# What happens: image, command, environment, mounts and limits of memory are the same. Of the rest nothing is: the clone
# runs as root, with all the capabilities that podman gives, in the default network, with another umask, working
# directory, host name, stop signal and time to stop, and without a health check. Status 0 and no word. So a clone
# reaches the network that was taken from the first, and files that it writes belong to root.
# Seen with podman 4.3.1 of Debian 12. Needs root.
#
#   web:  user 5:6, none, CAP_CHOWN, 0077, /bin, box, signal 2, 3 s, CMD-SHELL true
#   web2: user -, bridge, more capabilities, 0022, /, ID, signal 15, 10 s, no health check
. "$(dirname "$0")/common.bash" || exit 2
. "$here/podman.bash"
podman_engine buildah=1.28.2+ds1-3+deb12u1+b3 jq=1.6-2.1+deb12u3 libjq1=1.6-2.1+deb12u3 libonig5=6.9.8-1
mkdir data
image localhost/image 'COPY file /bin/file' 'CMD ["true"]'
engine create --name web --network none --user 5:6 --cap-drop all --cap-add chown --umask 077 --workdir /bin \
	--hostname box --stop-signal INT --stop-timeout 3 --health-cmd true --env A=1 --memory 100m \
	--volume "$place/data:/data:ro" localhost/image true >>words
status=0
engine container clone web web2 >>words || status=$?
expect "status" 0 "$status"
for name in web web2; do engine inspect "$name" | jq '.[0]' >"$name"; done
kept() {
	jq -r '"\(.Config.Cmd) \(.Config.Env | map(select(. == "A=1"))) \(.HostConfig.Memory) \(.Mounts[0].RW)"' "$1"
}
expect "kept" '["true"] ["A=1"] 104857600 false' "$(kept web)"
expect "kept, clone" "$(kept web)" "$(kept web2)"
lost() {
	jq -r '"\(.Config.User) \(.HostConfig.NetworkMode) \(.Config.Umask) \(.Config.WorkingDir)
		\(if .Config.Hostname == .Id[:12] then "ID" else .Config.Hostname end)
		\(.Config.StopSignal) \(.Config.StopTimeout) \(.Config.Healthcheck.Test | length)"' "$1" | xargs
}
expect "lost" "5:6 none 0077 /bin box 2 3 2" "$(lost web)"
expect "lost, clone" "bridge 0022 / ID 15 10 0" "$(lost web2)"
expect "capabilities" CAP_CHOWN "$(jq -r '.EffectiveCaps | join(" ")' web)"
expect "capabilities, clone" "CAP_CHOWN CAP_SETUID" \
	"$(jq -r '.EffectiveCaps | map(select(. == "CAP_CHOWN" or . == "CAP_SETUID")) | join(" ")' web2)"
engine rm web web2 >>words
