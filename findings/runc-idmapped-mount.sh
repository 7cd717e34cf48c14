#!/usr/bin/env bash
# config.json has an idmapped mount: uidMappings and gidMappings of a bind mount, so that files of user 0 on the disk
# are those of user 5000 in the container.
#
# One would guess: they are; or a runtime that cannot do it refuses, as a mount that it cannot make.
# What happens: so with crun. runc 1.1 passes over both without a word: the files are root's, and what the container
# writes has the wrong owner on the disk.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   stat of a file of root's:   crun: 5000     runc: 0, status 0
. "$(dirname "$0")/common.bash" || exit 2
runtimes
mkdir source
touch source/file
map='[{"containerID": 0, "hostID": 5000, "size": 65536}]'
cat >bundle/config.json <<END_OF_CONFIG
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/stat", "-c", "%u %g", "/mnt/file"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/mnt", "type": "bind", "source": "$place/source", "options": ["bind"],
             "uidMappings": $map, "gidMappings": $map}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END_OF_CONFIG
crun run --bundle bundle finding-$$ >out 2>words || cannot "$(tail -n 1 words)"
expect "crun" "5000 5000" "$(cat out)"
expect "runc" "0 0" "$(runc run --bundle bundle finding-$$ 2>&1)"
