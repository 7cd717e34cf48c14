#!/usr/bin/env bash
# conmon writes a container's output to a file of limited size (--log-size-max, podman's --log-opt max-size).
#
# One would guess: the file has the last lines, as many as the size allows, or there is an older file beside
# it, as with logrotate and docker's json-file.
# What happens: when the next line does not fit, the file begins anew and all that was in it is gone. At that moment
# the log has a single line, whatever the limit is: if the program fails just then, what it said before is lost.
# Seen with conmon 2.1.6 and runc 1.1.5 of Debian 12. Needs root.
#
#   at most 1000 bytes: after 19 lines: 1 to 19     after 20: line 20 alone     after 30: 20 to 30
. "$(dirname "$0")/common.bash" || exit 2
runtimes
debs conmon=2.1.6+ds1-1
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
             "args": ["/bin/sh", "-c", "i=0; while [ $((i = i + 1)) -le LINES ]; do echo line $i; done"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
seen() { # LINES: the first and the last line that the log has after so many
	local id=finding-$$-$1
	mkdir "$1" "$1/exits"
	sed "s/LINES/$1/" config >bundle/config.json
	conmon --api-version 1 --cid "$id" --cuuid "$id" --runtime "$place/root/usr/sbin/runc" \
		--runtime-arg=--root --runtime-arg="$place/runc" --bundle "$place/bundle" --container-pidfile "$place/$1/pid" \
		--log-path "k8s-file:$place/$1/log" --log-size-max 1000 --exit-dir "$place/$1/exits" \
		--conmon-pidfile "$place/$1/conmon" --socket-dir-path "$place/$1" >words 2>&1 || cannot "$(cat words)"
	until [[ -s $1/pid ]]; do sleep 0.1; done
	runc start "$id"
	until [[ -e $1/exits/$id ]]; do sleep 0.1; done
	runc delete "$id"
	cut -d' ' -f4- "$1/log" | sed -n '1p;$p' | xargs
}
mv bundle/config.json config
expect "after 19 lines, first and last" "line 1 line 19" "$(seen 19)"
expect "after 20 lines" "line 20 line 20" "$(seen 20)"
expect "after 30 lines" "line 20 line 30" "$(seen 30)"
expect "files" log "$(cd 30 && ls -d log*)"
