#!/usr/bin/env bash
# `crun exec ID COMMAND`: working directory and supplementary groups.
#
# One would guess: those of the container's process, as its environment and its user are.
# What happens: the directory is / and there are no supplementary groups. runc takes both over.
# (Engines give the whole process with --process and do not notice.)
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   crun: / uid=0 gid=0
#   runc: /srv uid=0 gid=0 groups=7
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/srv", "user": {"uid": 0, "gid": 0, "additionalGids": [7]},
             "args": ["/bin/sleep", "60"], "env": ["PATH=/bin"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
for runtime in crun runc; do
	on_exit+=("$runtime delete --force finding-$$")
	"$runtime" run --detach --bundle bundle finding-$$ </dev/null >/dev/null 2>&1
done
expect "with crun" "/ uid=0 gid=0" "$(crun exec finding-$$ sh -c 'pwd; id' | xargs)"
expect "with runc" "/srv uid=0 gid=0 groups=7" "$(runc exec finding-$$ sh -c 'pwd; id' | xargs)"
