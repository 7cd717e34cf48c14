"""A program of `exec`, which a shim runs in a container."""

import signal

import trio

from scrun.model.states import Ending, exited, killed
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Program
from scrun.supervisor.engines.failures import not_started, read_log
from scrun.supervisor.engines.slurm.exits import exit_code
from scrun.supervisor.engines.slurm.shim_site import SiteContainer, program_missing
from scrun.supervisor.nodes.connection import Shim, ShimError, ShimLost
from scrun.supervisor.nodes.streams import ContainerStreams

LAST_OUTPUT = 2.0
"""Seconds to wait for streams that a process keeps open after the end of the first one."""

_PATIENCE = 10.0
_ROOT_IS_MISSING = "no user mapping found"  # runc's
_INSTEAD = "runc makes no container without a user 0; install crun on the nodes"


class ShimSession:
    """A program of `exec` (see `supervisor.contracts.engine.Session`)."""

    def __init__(
        self,
        shim: Shim,
        container: str,
        child_env: ChildEnv,
        program: Program,
        site: SiteContainer | None = None,
    ) -> None:
        """Create it; nothing runs yet.

        Args:
            shim: The shim of the container.
            container: The container's id for the shim.
            child_env: The environment of child processes.
            program: What to run.
            site: What an oci.conf has run for the container, if there is one.

        Raises:
            EngineError: The site has no command for it.
            BundleError: The program's description is too long.
        """
        self._site = site
        self._what = {"process": program.process} if site is None else site.exec(program.process)
        self._shim = shim
        self._container = container
        self._id = shim.name("exec")
        self._child_env = child_env
        self._program = program
        self._streams: ContainerStreams | None = None

    async def run(self) -> Ending:
        """Run it to its end."""
        program, shim = self._program, self._shim
        async with shim.streams(program.stdio, program.terminal, self._child_env) as streams:
            try:
                await shim.call(
                    "exec", id=self._id, container=self._container, streams=streams.fields,
                    **self._what,
                )  # fmt: skip
            except ShimError as error:
                return not_started(words_of(error), what="program")
            self._streams = streams
            program.running()
            try:
                status = await shim.ended(self._id)
                await streams.finished(LAST_OUTPUT)
            except trio.Cancelled:
                with trio.move_on_after(_PATIENCE, shield=True):
                    await shim.call("signal", id=self._id, number=signal.SIGKILL, all=True)
                    await shim.ended(self._id)
                raise
            except ShimLost:
                return killed(signal.SIGKILL)  # with its container, which tells why
        code = exit_code(status)
        listens = self._site is not None and not (program.program_is_known or program.terminal)
        return (program_missing(code, streams) if listens else None) or exited(code)

    async def signal(self, number: int) -> None:
        """Send a signal to the program.

        Raises:
            EngineError: The program is not running yet, or it was not delivered.
        """
        await self._shim.call("signal", id=self._id, number=number, all=number == signal.SIGKILL)

    def resized(self) -> None:
        """Pass on a new size of the terminal."""
        if self._streams is not None:
            self._streams.resized(self._id)


def words_of(error: ShimError) -> str:
    """Return why a call failed: in the runtime's words, if its log has any."""
    words, _ = read_log(error.log.encode(errors="replace"))
    said = words or str(error)
    return f"{said.rstrip('.')}: {_INSTEAD}" if _ROOT_IS_MISSING in said else said
