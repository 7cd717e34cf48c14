#!/usr/bin/env bash
# A tmpfs of config.json has the option "tmpcopyup", which crun and runc know: it begins with what the image has there,
# so that a read-only container can write to /var or /run.
#
# One would guess: the same files with the same modes and owners, as after cp -a.
# What happens: neither does so. runc makes directories as its umask lets it: 1777 becomes 1755, so users cannot write
# to /var/tmp. Nor can it copy a pipe, as services leave them in /run: it ends with an error. crun does both, but the
# directory itself gets mode 1777 and root as its owner, like any tmpfs, instead of 700 and a user. runc keeps the mode.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   of 7:7 and mode 700, with tmp of 1777 in it: crun 1777 0:0, 1777      runc 700 0:0, 1755      a pipe: runc 1
. "$(dirname "$0")/common.bash" || exit 2
runtimes
mkdir -p bundle/rootfs/data/tmp
chmod 1777 bundle/rootfs/data/tmp
chmod 700 bundle/rootfs/data
chown 7:7 bundle/rootfs/data
cat >bundle/config.json <<'END_OF_JSON'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
             "args": ["/bin/stat", "-c", "%a %u:%g %n", "/data", "/data/tmp"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/data", "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup"]}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END_OF_JSON
seen() {
	local status=0
	"$1" run --bundle "$place/bundle" "finding-$$" </dev/null >out 2>words || status=$?
	echo "$status $(xargs <out)"
}
expect crun "0 1777 0:0 /data 1777 0:0 /data/tmp" "$(seen crun)"
expect runc "0 700 0:0 /data 1755 0:0 /data/tmp" "$(seen runc)"
mkfifo bundle/rootfs/data/pipe
expect "crun, a pipe" "0 1777 0:0 /data 1777 0:0 /data/tmp" "$(seen crun)"
expect "runc, a pipe" "1 " "$(seen runc)"
expect "its words" 1 "$(grep -c 'tmpcopyup: failed to copy' words)"
