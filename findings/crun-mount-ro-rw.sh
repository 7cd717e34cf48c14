#!/usr/bin/env bash
# A bind mount whose options are "ro" and, later, "rw": one list appended to another.
#
# One would guess: the last one counts, as with mount(8), so one may write there.
# What happens: so with runc. With crun "ro" stays; there is no way to take it back.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   ["bind", "ro", "rw"]: crun: ro    runc: rw
. "$(dirname "$0")/common.bash" || exit 2
runtimes
mkdir shared
cat >bundle/config.json <<END
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/cat", "/proc/mounts"], "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/mnt", "source": "$place/shared", "options": ["bind", "ro", "rw"]}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
seen() { "$1" run --bundle bundle finding-$$ | sed -nE 's|.* /mnt [^ ]+ (r[ow]).*|\1|p'; }
expect "with crun" ro "$(seen crun)"
expect "with runc" rw "$(seen runc)"
