"""Programs of `exec`, which a shim runs in a container."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import msgspec
import trio

from scrun.model.states import Ending, exited, killed
from scrun.supervisor.children.processes import ChildEnv, exit_code
from scrun.supervisor.contracts.engine import Session
from scrun.supervisor.contracts.program import SERVED, Program, rootfs
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.engines.failures import NotMade, not_started, read_log
from scrun.supervisor.engines.slurm.shim_site import SiteContainer, program_missing
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.connection import Shim, ShimError, ShimLost
from scrun.supervisor.nodes.restartable_streams import NO_STDIO, RestartableStreams
from scrun.supervisor.nodes.streams import ContainerStreams

LAST_OUTPUT = 2.0
"""Seconds to wait for streams that a process keeps open after the end of the first one."""

_PATIENCE = 10.0
_ROOT_IS_MISSING = "no user mapping found"  # runc's
_INSTEAD = "runc cannot create a container without a user 0; install crun on the nodes"


class ShimSession(Session):
    """A program of `exec`, which a shim has begun for us or for a supervisor before us."""

    def __init__(
        self,
        shim: Shim,
        target: str,
        deposit: Deposit,
        opened: AbstractAsyncContextManager[ContainerStreams],
        *,
        listens: bool = False,
    ) -> None:
        """`target` is its id for the shim; the deposit keeps what it needs to outlive us.

        Its streams are `opened`, by `begun` or `resumed`. `listens`: whether its standard error
        may say that there is no such program.
        """
        self._shim = shim
        self._id = target
        self._deposit = deposit
        self._opened = opened
        self._listens = listens
        self._streams: ContainerStreams | None = None

    async def run(self) -> Ending:
        try:
            async with self._opened as self._streams:
                return await self._end_of(self._streams)
        except NotMade as error:
            return not_started(error.words, what="program")

    async def _end_of(self, streams: ContainerStreams) -> Ending:
        """Wait for its end and its output; then the shim forgets it."""
        shim = self._shim
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
            code = exit_code(status)
            ending = (program_missing(code, streams) if self._listens else None) or exited(code)
            self._deposit.note(ending=msgspec.to_builtins(ending))
            return ending
        finally:
            shim.forget(self._id)

    async def signal(self, number: int) -> None:
        await self._shim.call("signal", id=self._id, number=number, all=number == signal.SIGKILL)

    async def handles(self, number: int) -> bool:
        return await self._shim.handles(self._id, number)

    def resized(self) -> None:
        if self._streams is not None:
            self._streams.resized(self._id)


def begun(
    shim: Shim,
    container: str,
    child_env: ChildEnv,
    program: Program,
    site: SiteContainer | None = None,
) -> ShimSession:
    """Prepare a program.

    Raises EngineError if the site has no command for it, and BundleError if its description is too
    long.
    """
    verb = "exec"
    if program.files == SERVED:
        verb, what = "files", dict[str, object]()
    elif program.files is not None and program.files.direction == rootfs(()).direction:
        verb, what = "rootfs", {"over": [one for one in program.files.path.split("/") if one]}
    elif program.files is not None:
        verb, what = "copy", {"files": program.files}
    elif site is not None:
        what = site.exec(program.process)
    else:
        what = {"process": program.process}
    target = shim.name("exec")

    @asynccontextmanager
    async def opened() -> AsyncIterator[ContainerStreams]:
        ends = program.ends or RestartableStreams(program.stdio, child_env, program.deposit)
        async with shim.streams(
            program.stdio, program.terminal, child_env, program.on_output_lost, ends
        ) as streams:
            streams.hold()  # what was seen of it is never lost: a successor has to know it before
            try:
                await shim.call(
                    verb, id=target, container=container, streams=streams.fields, **what
                )
            except ShimError as error:
                raise NotMade(words_of(error), shown=False) from None
            program.deposit.note(target=target, streams=streams.fields)
            program.running()
            streams.let_go()
            yield streams

    listens = site is not None and not (program.program_is_known or program.terminal)
    return ShimSession(shim, target, program.deposit, opened(), listens=listens)


def resumed(
    shim: Shim,
    found: Inheritance,
    deposit: Deposit,
    child_env: ChildEnv,
    journal: Journal,
    resume: Callable[[str, Mapping[int, int]], Awaitable[object]],
    running: Callable[[], None],
) -> ShimSession:
    """Take over a program that another supervisor has had run, which has died.

    Args:
        shim: The shim, not connected yet.
        resume: Called with its id for the shim and how many bytes of each of its streams were
            written; returns when there is a connection.
        running: Called when it can get signals.
    """
    target = found.facts["target"]

    @asynccontextmanager
    async def opened() -> AsyncIterator[ContainerStreams]:
        ends = RestartableStreams(NO_STDIO, child_env, deposit, found.fds)
        fields = ends.fields(found.facts["streams"])
        failed = partial(journal.write, "error")
        async with shim.streams(
            ends.stdio, "terminal" in fields, child_env, failed, ends, fields
        ) as streams:
            await resume(target, ends.written_by(fields))
            streams.resized(target)  # it may have been while nobody told
            running()
            yield streams

    return ShimSession(shim, target, deposit, opened())


def words_of(error: ShimError) -> str:
    """Return why a call failed: in the runtime's words, if its log has any.

    The shim's text may have more than these: it names a root directory that is missing.
    """
    words, _ = read_log(error.log.encode(errors="replace"))
    said = str(error) if words in str(error) else words
    return f"{said.rstrip('.')}: {_INSTEAD}" if _ROOT_IS_MISSING in said else said
