"""What runs beside a container, on its node: scripts, and commands of its OCI runtime. Pure.

Both engines use the scripts: on a cluster as a step of the job, on this machine as a child.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from scrun.core.errors import BundleError, SettingsError
from scrun.core.paths import real_id
from scrun.oci.signals import signal_name
from scrun.settings.oci_conf.commands import NodeRuntime, signalled
from scrun.settings.oci_conf.patterns import substitute
from scrun.supervisor.core.names import user_name

_PIECE = 100_000  # bytes: a variable takes 128 KiB at most (MAX_ARG_STRLEN)
_ALL = 1_500_000  # bytes: variables and arguments take 2 MiB at most

# The runtime does not know a container for some milliseconds after its step began, and there is no
# event for that.
_KNOWN = """\
n=0
until ({state}) </dev/null >/dev/null 2>&1; do
    n=$((n + 1))
    [ $n -lt 30 ] || break
    sleep 0.1
done
"""

# The environment carries the description of the program: the node may not see our files, and a
# command line, unlike the environment, is readable by everybody (proc(5)). The file is unlinked
# before it is written, so it never stays behind.
_EXEC = """\
f=$(mktemp) && exec 8>"$f" 9<"$f" && rm "$f" && printf %s {values} >&8 && exec 8>&- || exit 125
unset {names}
{known}{command}
"""

_PID = """\
pid=$( ({state}) </dev/null 2>/dev/null |
    sed -n 's/.*"pid" *: *\\([0-9][0-9]*\\).*/\\1/p' | head -n 1)
"""

_PROCESSES = """\
: "${{SCRUN_TELLS_APART:=pid}}"
ns=$(readlink "/proc/${{pid:-0}}/ns/$SCRUN_TELLS_APART" 2>/dev/null) || {{
    echo "it has ended, or its runtime does not know it"
    exit 3
}}
if [ "$ns" = "$(readlink "/proc/self/ns/$SCRUN_TELLS_APART")" ]; then
    # it has no such namespace of its own: its first process and all descendants
    pids='' next=$pid
    while [ -n "$next" ]; do
        pids="$pids $next"
        next=$(for p in $next; do cat "/proc/$p/task/"*/children 2>/dev/null; done)
    done
else
    ns=${{ns#*:?}}
    # one process; BusyBox' find has no -lname
    pids=$(ls -ln /proc/[0-9]*/ns/"$SCRUN_TELLS_APART" 2>/dev/null |
        sed -n "s|.* /proc/\\([0-9]*\\)/ns/[a-z]* -> [a-z]*:.${{ns%?}}.\\$|\\1|p")
fi
"""

_UNKNOWN = """\
echo "the site's oci.conf has no RunTimeQuery"
exit 3
"""

_STATUS = """\
cat "/proc/${{pid:-0}}/status"
"""

_LIST = """\
echo "host $(cat /proc/sys/kernel/random/boot_id) $(readlink /proc/self/ns/pid)"
echo pids
for p in $pids; do echo "$p"; done
echo table
"""

# A process that has ended meanwhile needs no signal.
_SIGNAL = """\
failed=''
for p in $pids; do
    kill -{name} "$p" 2>/dev/null || [ ! -e "/proc/$p" ] || failed=$p
done
"""

_RESULT = '[ -z "$failed" ] || { echo "not permitted for process $failed"; exit 1; }\n'

# The limit is the least of all groups above; "max" means that a group sets no limit.
_STATS = """\
read -r up _ </proc/uptime
read -r _ limit _ </proc/meminfo
limit=$((limit * 1024))
for d in $(sed -n 's|^0::||p; s|^[0-9]*:memory:|/memory|p' "/proc/$pid/cgroup" 2>/dev/null); do
    d=/sys/fs/cgroup$d
    while [ -n "${d#/sys/fs/cgroup}" ]; do
        for f in "$d/memory.max" "$d/memory.limit_in_bytes"; do
            [ -r "$f" ] && read -r n <"$f" && [ "$n" -lt "$limit" ] 2>/dev/null && limit=$n
        done
        d=${d%/*}
    done
done
echo "units $(getconf CLK_TCK) $(getconf PAGESIZE) $up $limit"
for p in $pids; do cat "/proc/$p/stat" 2>/dev/null; done
:
"""


BY_MOUNTS = "SCRUN_TELLS_APART=mnt\n"
"""Before a script: the container shares its PID namespace with others."""


def exec_script(command: str, state: str, variables: Collection[str]) -> str:
    """Return the script that runs one more program.

    Args:
        command: The runtime's command, with `/proc/self/fd/9` for the file.
        state: The runtime's command that succeeds once it knows the container; "" if unknown.
        variables: The names of `process_variables`, which must be in its environment.
    """
    return _EXEC.format(
        values=" ".join(f'"${name}"' for name in variables),
        names=" ".join(variables),
        known=_KNOWN.format(state=state) if state else "",
        command=_replacing(command),
    )


def _replacing(command: str) -> str:
    """Make a single command replace the shell, so that it gets the signals."""
    bare = re.sub(r"'[^']*'|\"[^\"\\$`]*\"", "", command)
    if re.match(r"\s*(exec\s|[!{(])", bare) or re.search(r"[;&|`\n]|\$\(", bare):
        return command
    has_variables = re.match(r"\s*\w+=", command)
    return f"exec {'env ' if has_variables else ''}{command}"


PROCESS_FILE = "/proc/self/fd/9"
"""The path of the program's description in `exec_script`."""


def process_variables(process: Mapping[str, Any]) -> dict[str, str]:
    """Split the description of a program into variables; BundleError if it is too long."""
    text = json.dumps(process)  # in ASCII, so a character is a byte
    if len(text) > _ALL:
        raise BundleError(f"process: its {len(text)} bytes exceed the limit of {_ALL}; shorten it")
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    return {f"SCRUN_PROCESS_{number}": piece for number, piece in enumerate(pieces)}


def list_script(state: str, ps: str) -> str:
    """Return the script that lists a container's processes.

    It prints a line `host BOOT-ID PID-NAMESPACE`, a line `pids`, a line for each pid, a line
    `table`, and the output of `ps`, a quoted command; "" for none. `state` is as in
    `signal_script`.
    """
    return _processes(state) + _LIST + (f"exec {ps}\n" if ps else "")


def stats_script(state: str) -> str:
    """Return the script that prints the resource usage of a container's processes.

    It prints a line `units TICKS-PER-SECOND PAGE-SIZE SECONDS-SINCE-BOOT LIMIT`, and each process'
    `stat` (proc(5)). LIMIT is the bytes that control groups, or the node, leave the first process.
    """
    return _processes(state) + _STATS


def status_script(state: str) -> str:
    """Return the script that prints the status (proc(5)) of a container's first process."""
    return (_PID + _STATUS).format(state=state) if state else _UNKNOWN


def signal_script(state: str, name: str) -> str:
    """Return the script that signals all processes of a container, by a name without SIG.

    `state` is the runtime's command that prints the container's state; "" if unknown. It signals
    twice, for processes that were started meanwhile.
    """
    once = _processes(state) + _SIGNAL.format(name=name)
    return once + once + _RESULT


def _processes(state: str) -> str:
    """Return the beginning of a script: it sets `pids`, or exits with 3."""
    return (_PID + _PROCESSES).format(state=state) if state else _UNKNOWN


class NodeCommands(msgspec.Struct, frozen=True):
    """A site's command patterns, filled in for the container of one task of a step."""

    patterns: NodeRuntime

    def kill(self, step_id: str, node: str, number: int, task: int = 0) -> str:
        """Return the command that signals the container's first process.

        Raises:
            SettingsError: The pattern needs what only slurmstepd knows, such as the bundle's path.
        """
        return self._filled(
            signalled(self.patterns.kill, signal_name(number)), step_id, node, task
        )

    def state(self, step_id: str, node: str, task: int = 0) -> str:
        """Return the command that prints the container's state, or "" if it is not known."""
        try:
            return self._filled(self.patterns.state, step_id, node, task)
        except SettingsError:
            return ""

    def exec(self, step_id: str, node: str, task: int = 0) -> str:
        """Return the command that runs another program; EngineError if the site has none."""
        return self._filled(self.patterns.exec_or_refuse(), step_id, node, task)

    def pause(self, *, resume: bool, step_id: str, node: str, task: int) -> str:
        """Return the command that pauses or resumes the container, or ""."""
        pattern = self.patterns.resume if resume else self.patterns.pause
        return self._filled(pattern, step_id, node, task)

    def _filled(self, pattern: str, step_id: str, node: str, task: int) -> str:
        """Fill in a pattern, for the shell.

        `%t` is the index of a task among those of its node (22.05, measured: the second node's
        container is `….0.node2`; 24.11, from its source).
        """
        job, _, step = step_id.partition(".")
        uid = real_id("uid")
        values = {"j": job, "s": step, "t": str(task), "n": node, "f": PROCESS_FILE}
        values |= {"u": user_name(uid), "U": str(uid)}
        return substitute(pattern, values)
