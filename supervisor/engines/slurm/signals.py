"""Signals to a container that runs as a step.

scancel signals all processes of a step. A container's signals are for its first process
(runtime.md, Kill): a shell that waits for a child with a trap set would see the child die of the
same signal first. So the OCI runtime on the node delivers them, called by a step of its own, with
the command that the site has put down in oci.conf(5) as RunTimeKill. SIGKILL is for all of them
anyway, and where no command is known scancel is what there is.

A container of several tasks is one on each node, or more (23.02), and a signal is for the first
process of each. One step on all those nodes delivers it.
"""

import os
import pwd
import shlex
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import trio

from scrun.errors import EngineError, SettingsError
from scrun.oci.signals import signal_name
from scrun.settings.ociconf import parse_oci_conf, substitute
from supervisor.engines.slurm.cancel import signal_step
from supervisor.engines.slurm.tools import Tools, outer_id
from supervisor.processes import Setting, child
from supervisor.pumps import messages

_DEADLINE = 15.0
_LONGEST = 100_000  # of a script: a word of a command line has 128 KiB at most

Running = Mapping[str, Sequence[int]]
"""Where tasks of a step run: for each node their numbers there, from 0."""

# For some milliseconds after its step began the runtime does not know a container yet, and no
# event tells when it does. It is tried again on the node itself, for three seconds: a further
# step for each try would cost more, and signal those again that had the signal.
_TRIES = 30
_TRY = """\
try() {
    n=0
    until (eval "$1") >/dev/null 2>&1; do
        n=$((n + 1))
        [ $n -lt $most ] || return
        sleep 0.1
    done
    echo delivered
}
"""


class KillCommand(msgspec.Struct, frozen=True):
    """The command by which the runtime on a node signals a container's first process.

    Attributes:
        pattern: RunTimeKill of oci.conf, without a signal at its end.
    """

    pattern: str

    def command(self, step_id: str, node: str, number: int, task: int = 0) -> str:
        """Fill the pattern in, for the shell.

        `%t` is the number of a task among those of its node (measured with 22.05: the second
        node's container is `….0.node2`; read, 24.11: an index into the node's tasks).

        Raises:
            SettingsError: It asks for what only slurmstepd knows, such as the bundle's path.
        """
        job, _, step = step_id.partition(".")
        uid = outer_id("uid")
        values = {"j": job, "s": step, "t": str(task), "n": node}
        values |= {"u": _user_name(uid), "U": str(uid)}
        return substitute(f"{self.pattern} {signal_name(number)}", values)


def read_kill_command(slurm_conf: str | None) -> KillCommand | None:
    """Read RunTimeKill from the oci.conf beside a slurm.conf; None when there is none.

    The nodes' own file may be another one; sites keep them alike (oci.conf(5)).
    """
    directory = os.path.dirname(slurm_conf) if slurm_conf else "/etc/slurm"
    path = os.path.join(directory, "oci.conf")
    try:
        with open(path, encoding="utf-8") as file:
            pattern = parse_oci_conf(file.read(), path).kill_pattern
    except (OSError, UnicodeDecodeError, SettingsError):
        return None
    return KillCommand(pattern) if pattern else None


def kill_scripts(
    kill: KillCommand, step_id: str, running: Running, number: int, tries: int = _TRIES
) -> Iterator[tuple[list[str], str]]:
    """Write the script that signals the containers of the node it runs on.

    It says `delivered` for each.

    Args:
        kill: The runtime's command.
        step_id: The step.
        running: Where its containers are.
        number: The signal.
        tries: How often to try, a tenth of a second apart.

    Yields:
        Nodes, and their script: one for all nodes, unless they are hundreds.

    Raises:
        SettingsError: As `KillCommand.command`.
    """
    nodes: list[str] = []
    cases = ""
    for node, tasks in running.items():
        commands = [kill.command(step_id, node, number, task) for task in tasks]
        calls = " ".join(f"try {shlex.quote(command)} &" for command in commands)
        case = f"{shlex.quote(node)}) {calls} ;;\n"
        if nodes and len(cases) + len(case) > _LONGEST:
            yield nodes, _script(cases, tries)
            nodes, cases = [], ""
        nodes.append(node)
        cases += case
    if nodes:
        yield nodes, _script(cases, tries)


def _script(cases: str, tries: int) -> str:
    return f"most={tries}\n{_TRY}case $SLURMD_NODENAME in\n{cases}esac\nwait\n"


async def signal_container(
    tools: Tools,
    setting: Setting,
    kill: KillCommand | None,
    step_id: str,
    running: Running,
    number: int,
) -> None:
    """Send a signal to the first process of a container; to all, when that is not possible.

    Of several tasks each gets it. Some may end meanwhile: when one has got it, all that are there
    have, and scancel would bring it twice.

    Raises:
        EngineError: It was not delivered.
    """
    delivered = False
    if kill is not None:
        try:
            for nodes, script in kill_scripts(kill, step_id, running, number):
                delivered |= await _by_runtime(tools, setting, step_id, nodes, script)
        except SettingsError:
            pass
    if not delivered:
        await signal_step(tools, setting, step_id, number)


async def _by_runtime(
    tools: Tools, setting: Setting, step_id: str, nodes: Sequence[str], script: str
) -> bool:
    """Call the runtime on the nodes; tell whether any delivered."""
    count = len(nodes)
    words = [tools.srun, "--jobid", step_id.partition(".")[0], "--overlap", "--export=NONE"]
    words += [f"--nodes={count}", f"--ntasks={count}", "--nodelist", ",".join(nodes)]
    words += ["--chdir=/", "--input=none", "--job-name=scrun-kill", "--", "/bin/sh", "-c", script]
    delivered: list[str] = []
    said: list[str] = []
    with trio.move_on_after(_DEADLINE) as patience:
        async with (
            messages(delivered.append) as stdout,
            messages(said.append) as stderr,
            child(words, setting, stdout=stdout, stderr=stderr) as srun,
        ):
            await srun.wait()
    if patience.cancelled_caught and not delivered:
        raise EngineError("the signal was not delivered: Slurm makes no step for it")
    return bool(delivered)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
