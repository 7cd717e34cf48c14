#!/usr/bin/env bash
# config.json mounts a devpts at /dev/pts with the option "newinstance" alone, as one writes it by hand.
#
# One would guess: terminals work in it, for every user: the runtime makes /dev/ptmx a link to pts/ptmx, which the
# kernel makes for that purpose, and whoever may open a terminal on the host may in the container.
# What happens: nobody without a capability opens one: the kernel's own mode for pts/ptmx is 000 (ptmxmode), unless an
# option says otherwise. Root of a container with no capability of its own is refused, too; as root with
# CAP_DAC_OVERRIDE it works, so who tries it as root sees nothing.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12, and Linux 6.18. Needs root.
#
#   crun, runc: user 1000: 0, root without capabilities: 0, root with CAP_DAC_OVERRIDE: 1, user 1000 with ptmxmode=666: 1
. "$(dirname "$0")/common.bash" || exit 2
runtimes
opens() { # RUNTIME UID CAPABILITIES OPTIONS: prints how many terminals that opens
	cat >bundle/config.json <<-END
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
		 "process": {"cwd": "/", "user": {"uid": $2, "gid": 0}, "env": ["PATH=/bin"],
		             "args": ["/bin/sh", "-c", "(: 3<>/dev/ptmx) 2>/dev/null && echo 1 || echo 0"],
		             "capabilities": {"bounding": [$3], "permitted": [$3], "effective": [$3]}},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
		            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
		            {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["newinstance"$4]}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
	END
	"$1" run --bundle bundle finding-$$
}
for runtime in crun runc; do
	expect "$runtime, user 1000" 0 "$(opens "$runtime" 1000 '' '')"
	expect "$runtime, root without capabilities" 0 "$(opens "$runtime" 0 '' '')"
	expect "$runtime, root with one" 1 "$(opens "$runtime" 0 '"CAP_DAC_OVERRIDE"' '')"
	expect "$runtime, user 1000 with the option" 1 "$(opens "$runtime" 1000 '' ', "ptmxmode=0666"')"
done
