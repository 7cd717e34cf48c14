"""Programs of `exec`, which a shim runs in a container."""

import signal
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import trio

from scrun.model.states import Ending, exited, killed
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Program, Session
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.engines.failures import not_started, read_log
from scrun.supervisor.engines.slurm.exits import exit_code
from scrun.supervisor.engines.slurm.shim_site import SiteContainer, program_missing
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.connection import Shim, ShimError, ShimLost
from scrun.supervisor.nodes.restartable_streams import RestartableStreams, ResumedStreams
from scrun.supervisor.nodes.resumed import ResumedShim
from scrun.supervisor.nodes.streams import ContainerStreams

LAST_OUTPUT = 2.0
"""Seconds to wait for streams that a process keeps open after the end of the first one."""

_PATIENCE = 10.0
_ROOT_IS_MISSING = "no user mapping found"  # runc's
_INSTEAD = "runc cannot create a container without a user 0; install crun on the nodes"


class _Running(Session):
    """A program that the shim runs, for us or for a supervisor before us."""

    def __init__(self, shim: Shim, deposit: Deposit) -> None:
        self._shim = shim
        self._deposit = deposit
        self._id = ""
        self._streams: ContainerStreams | None = None

    async def _end_of(self, streams: ContainerStreams) -> Ending:
        """Wait for its end and its output; then the shim forgets it."""
        shim = self._shim
        self._streams = streams
        try:
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
            ending = self._ending(exit_code(status), streams)
            self._deposit.note(ending=msgspec.to_builtins(ending))
            return ending
        finally:
            shim.forget(self._id)

    def _ending(self, code: int, streams: ContainerStreams) -> Ending:
        return exited(code)

    async def signal(self, number: int) -> None:
        """Send a signal to the program.

        Raises:
            EngineError: The program is not running yet, or it was not delivered.
        """
        await self._shim.call("signal", id=self._id, number=number, all=number == signal.SIGKILL)

    async def handles(self, number: int) -> bool:
        return await self._shim.handles(self._id, number)

    def resized(self) -> None:
        if self._streams is not None:
            self._streams.resized(self._id)


class ShimSession(_Running):
    """A program of `exec`."""

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
            site: What an oci.conf has run for the container, if there is one.

        Raises:
            EngineError: The site has no command for it.
            BundleError: The program's description is too long.
        """
        super().__init__(shim, program.deposit)
        self._site = site
        self._what = {"process": program.process} if site is None else site.exec(program.process)
        self._container = container
        self._id = shim.name("exec")
        self._child_env = child_env
        self._program = program

    async def run(self) -> Ending:
        program, shim, child_env = self._program, self._shim, self._child_env
        ends = RestartableStreams(program.stdio, child_env, program.deposit)
        async with shim.streams(program.stdio, program.terminal, child_env, ends=ends) as streams:
            streams.hold()  # what was seen of it is never lost: a successor has to know it before
            try:
                await shim.call(
                    "exec", id=self._id, container=self._container, streams=streams.fields,
                    **self._what,
                )  # fmt: skip
            except ShimError as error:
                return not_started(words_of(error), what="program")
            program.deposit.note(target=self._id, streams=streams.fields)
            program.running()
            streams.let_go()
            return await self._end_of(streams)

    def _ending(self, code: int, streams: ContainerStreams) -> Ending:
        program = self._program
        listens = self._site is not None and not (program.program_is_known or program.terminal)
        return (program_missing(code, streams) if listens else None) or exited(code)


class ResumedShimSession(_Running):
    """A program of `exec` that another supervisor has had run, which has died."""

    def __init__(
        self,
        shim: ResumedShim,
        found: Inheritance,
        deposit: Deposit,
        child_env: ChildEnv,
        journal: Journal,
        resumed: Callable[[str, Mapping[int, int]], Awaitable[object]],
        running: Callable[[], None],
    ) -> None:
        """Take it over.

        Args:
            shim: The shim, not connected yet.
            resumed: Called with its id for the shim and how many bytes of each of its streams were
                written; returns when there is a connection.
            running: Called when it can get signals.
        """
        super().__init__(shim, deposit)
        self._id = found.facts["target"]
        self._resumed_shim = shim
        self._found = found
        self._child_env = child_env
        self._journal = journal
        self._resumed = resumed
        self._is_running = running

    async def run(self) -> Ending:
        ends = ResumedStreams(self._found.fds, self._deposit)
        fields = ends.fields(self._found.facts["streams"])
        carried = self._resumed_shim.resumed_streams(fields, self._child_env, self._journal, ends)
        async with carried as streams:
            await self._resumed(self._id, ends.written_by(fields))
            streams.resized(self._id)  # it may have been while nobody told
            self._is_running()
            return await self._end_of(streams)


def words_of(error: ShimError) -> str:
    """Return why a call failed: in the runtime's words, if its log has any.

    The shim's text may have more than these: it names a root directory that is missing.
    """
    words, _ = read_log(error.log.encode(errors="replace"))
    said = str(error) if words in str(error) else words
    return f"{said.rstrip('.')}: {_INSTEAD}" if _ROOT_IS_MISSING in said else said
