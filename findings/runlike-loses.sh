#!/usr/bin/env bash
# runlike prints the `docker run` that makes a container as one is, from `docker inspect`, to make it again.
#
# One would guess: a container that does the same and is held to the same; what it cannot say it mentions.
# What happens: of an entrypoint with arguments (tini -g --) the first word alone is there, so the program gets the
# wrong ones. --read-only, --init, --cpus, --ulimit, --pids-limit, --tmpfs, --sysctl, --group-add and --security-opt
# are left out without a word: the copy may write, and has no limits but that of memory.
# Seen with runlike 1.5.4; the input is as Docker writes it.
#
#   docker run --name=web … --entrypoint /bin/tini … --memory="104857600" --detach=true image run
. "$(dirname "$0")/common.bash" || exit 2
pips runlike==1.5.4
cat >container.json <<'END'
[{
	"Id": "a1b2c3", "Name": "/web", "Image": "sha256:a1b2c3", "Mounts": [], "NetworkSettings": {"Networks": {}},
	"Config": {
		"Hostname": "web", "Image": "image", "Env": ["PATH=/bin"], "Entrypoint": ["/bin/tini", "-g", "--"],
		"Cmd": ["run"], "User": "", "Labels": {}, "WorkingDir": "/", "Tty": false, "OpenStdin": false
	},
	"HostConfig": {
		"Binds": null, "Memory": 104857600, "NanoCpus": 500000000, "CpusetCpus": "", "CpusetMems": "",
		"PidMode": "", "LogConfig": {"Type": "json-file", "Config": {}}, "PortBindings": {},
		"NetworkMode": "default", "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
		"ReadonlyRootfs": true, "Init": true, "PidsLimit": 7, "Tmpfs": {"/scratch": "size=1m"},
		"Sysctls": {"net.core.somaxconn": "99"}, "GroupAdd": ["5"], "SecurityOpt": ["no-new-privileges"],
		"Ulimits": [{"Name": "nofile", "Soft": 5, "Hard": 6}]
	}
}]
END
status=0
runlike --stdin <container.json >out 2>words || status=$?
expect "status and words" "0 " "$status $(cat words)"
expect "entrypoint" "--entrypoint /bin/tini" "$(grep -oE -e '--entrypoint .*tini( -g)?' out)"
expect "memory" 1 "$(grep -c -e '--memory="104857600"' out)"
others='--(read-only|init|cpus|ulimit|pids-limit|tmpfs|sysctl|group-add|security-opt)'
expect "others" "" "$(grep -oE -e "$others" -e ' -- ' out || true)"
