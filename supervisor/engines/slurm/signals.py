"""Signals to a container that runs as a step.

scancel signals all processes of a step. A container's signals are for its first process
(runtime.md, Kill): a shell that waits for a child with a trap set would see the child die of the
same signal first. So the OCI runtime on the node delivers them, called by a step of its own, with
the command that the site has put down in oci.conf(5) as RunTimeKill. SIGKILL is for all of them
anyway, and where no command is known scancel is what there is.
"""

import os
import pwd
import re
from collections.abc import Mapping

import msgspec
import trio

from scrun.errors import EngineError, SettingsError
from scrun.oci.signals import signal_name
from scrun.settings.ociconf import parse_oci_conf, substitute
from supervisor.engines.slurm.cancel import signal_step
from supervisor.engines.slurm.tools import Tools, outer_id
from supervisor.processes import Setting, child
from supervisor.pumps import messages

_DEADLINE = 10.0
_PATIENCE = 3.0
_RETRY = 0.1


class KillCommand(msgspec.Struct, frozen=True):
    """The command by which the runtime on a node signals a container's first process.

    Attributes:
        pattern: RunTimeKill of oci.conf, without a signal at its end.
    """

    pattern: str

    def command(self, step_id: str, node: str, number: int) -> str:
        """Fill the pattern in, for the shell.

        Raises:
            SettingsError: It asks for what only slurmstepd knows, such as the bundle's path.
        """
        job, _, step = step_id.partition(".")
        uid = outer_id("uid")
        values = {"j": job, "s": step, "t": "0", "n": node, "u": _user_name(uid), "U": str(uid)}
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


def first_node(environment: Mapping[str, str]) -> str:
    """Return the first name of SLURM_JOB_NODELIST, such as node3 of `node[3-5,9],other`."""
    listed = re.match(r"([^\[,]*)(?:\[([0-9]+)[^\]]*\])?", environment["SLURM_JOB_NODELIST"])
    assert listed  # it matches the empty string
    return listed[1] + (listed[2] or "")


async def signal_container(
    tools: Tools,
    setting: Setting,
    kill: KillCommand | None,
    step_id: str,
    node: str,
    number: int,
) -> None:
    """Send a signal to the first process of a container; to all, when that is not possible.

    Raises:
        EngineError: It was not delivered.
    """
    if kill is not None:
        try:
            command = kill.command(step_id, node, number)
        except SettingsError:
            command = ""
        if command and await _by_runtime(tools, setting, step_id, node, command):
            return
    await signal_step(tools, setting, step_id, number)


async def _by_runtime(
    tools: Tools, setting: Setting, step_id: str, node: str, command: str
) -> bool:
    """Call the runtime on the node; tell whether it delivered.

    For some milliseconds after its step began the runtime does not know the container yet.
    """
    words = [tools.srun, "--jobid", step_id.partition(".")[0], "--overlap", "--export=NONE"]
    words += ["--nodes=1", "--ntasks=1", "--nodelist", node, "--chdir=/", "--input=none"]
    words += ["--job-name=scrun-kill", "--", "/bin/sh", "-c", command]
    said: list[str] = []
    until = trio.current_time() + _PATIENCE
    while True:
        with trio.move_on_after(_DEADLINE) as patience:
            async with (
                messages(said.append) as stderr,
                child(words, setting, stderr=stderr) as srun,
            ):
                status = await srun.wait()
        if patience.cancelled_caught:
            raise EngineError("the signal was not delivered: Slurm makes no step for it")
        if status == 0 or trio.current_time() > until:
            return status == 0
        await trio.sleep(_RETRY)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
