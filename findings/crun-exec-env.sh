#!/usr/bin/env bash
# `crun exec --env NAME=VALUE ID COMMAND`.
#
# One would guess: the command has the container's environment and this variable too, as with
# `podman exec`, `docker exec` and `runc exec`.
# What happens: it has this variable alone. PATH is gone as well, so that a command without a slash
# is not even found.
# Seen with crun 1.8.1 (and, for comparison, runc 1.1.5) of Debian 12. Needs root.
#
#   crun exec -e A=1 ID /bin/env:  A=1 HOME=/
#   crun exec -e A=1 ID env:       executable file `env` not found in $PATH
#   runc exec -e A=1 ID env:       PATH=/bin B=2 HOME=/ A=1
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/sleep", "60"],
             "env": ["PATH=/bin", "B=2"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END
for runtime in crun runc; do
	on_exit+=("$runtime delete --force finding-$$")
	"$runtime" run --detach --bundle bundle finding-$$ </dev/null >/dev/null 2>&1
done
expect "crun, with the path" "A=1 HOME=/" "$(crun exec -e A=1 finding-$$ /bin/env | xargs)"
crun exec -e A=1 finding-$$ env >out 2>&1 && seen=0 || seen=$?
expect "crun, by name: status" 255 "$seen"
expect "crun, by name: words" 'executable file `env` not found in $PATH' \
	"$(grep -o 'executable file `env` not found in $PATH' out)"
expect "runc, by name" "A=1 B=2 HOME=/ PATH=/bin" "$(runc exec -e A=1 finding-$$ env | sort | xargs)"
