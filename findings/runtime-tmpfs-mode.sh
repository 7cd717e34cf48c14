#!/usr/bin/env bash
# The mode of a tmpfs that config.json mounts without the option "mode=".
#
# One would guess: 1777, the kernel's own; the directory below is hidden and does not matter.
# What happens: so with crun. runc gives the tmpfs the mode of the directory that it hides, so other
# users of the container may or may not write there, as the image has it.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   crun: 1777
#   runc: 750 (that of the directory in the image)
. "$(dirname "$0")/common.bash" || exit 2
runtimes
chmod 750 bundle/rootfs/mnt
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/stat", "-c", "%a", "/mnt"],
             "env": []},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/mnt", "type": "tmpfs", "source": "tmpfs"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
expect "mode with crun" 1777 "$(crun run --bundle bundle finding-$$)"
expect "mode with runc" 750 "$(runc run --bundle bundle finding-$$)"
