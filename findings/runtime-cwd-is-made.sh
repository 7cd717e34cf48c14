#!/usr/bin/env bash
# process.cwd of config.json is a directory that the image does not have: mistyped, or one of the host's.
#
# One would guess: `create` fails, as `exec --cwd` does; the specification says no word of making it.
# What happens: both make it, in the bundle's root file system, with what is missing above it, for root and mode 755.
# It stays when the container is deleted, so the image is changed; and another user who works there cannot write.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   cwd /srv/jbo of user 1000: status 0, pwd: /srv/jbo; in rootfs afterwards: 755 0:0 (both)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END'
{
	"ociVersion": "1.0.2",
	"process": {"user": {"uid": 1000, "gid": 1000}, "args": ["pwd"], "env": ["PATH=/bin"], "cwd": "/srv/jbo"},
	"root": {"path": "rootfs"},
	"mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
	"linux": {"namespaces": [{"type": "mount"}]}
}
END
for runtime in crun runc; do
	status=0
	"$runtime" run --bundle bundle it >out 2>words </dev/null || status=$?
	expect "$runtime" "0 /srv/jbo" "$status $(cat out words)"
	expect "afterwards" "755 0:0" "$(stat -c '%a %u:%g' bundle/rootfs/srv/jbo)"
	rm -r bundle/rootfs/srv
done
