"""A container of crun or runc that an engine has created.

Its first process is a child of the engine's monitor, as when that calls crun or runc itself: the
`create` that waits makes it, by the runtime's own `create`. docs/decisions/pid-on-this-machine.md
has why.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from scrun.errors import EngineError, shortened
from scrun.states import Ending
from supervisor.engines.base import Call, Request, Step
from supervisor.engines.local.commands import Container, RuntimeCommands
from supervisor.engines.local.exits import SomebodysChild
from supervisor.engines.local.job import LocalJob, read_tail
from supervisor.processes import child, own_program
from supervisor.pumps import messages
from supervisor.threads import in_thread

_PATIENCE = 5.0


class RuntimeJob(LocalJob):
    """A job whose container may be somebody else's child (see `supervisor.engines.base.Makes`)."""

    def __init__(
        self,
        commands: RuntimeCommands,
        container: Container,
        request: Request,
        tell: Callable[[Container | None], Awaitable[None]],
    ) -> None:
        """See `LocalJob`."""
        super().__init__(commands, container, request, tell)
        self._runtime_commands = commands
        self._first: SomebodysChild | None = None

    @property
    def _runs(self) -> bool:
        return super()._runs or (self._first is not None and self._first.ending is None)

    @asynccontextmanager
    async def made(
        self, step: Step, call: Call, console: str | None
    ) -> AsyncIterator["RuntimeProcess"]:
        """See `supervisor.engines.base.Makes`."""
        log = os.path.join(self._request.record, "runtime.log")
        pid_file = os.path.join(self._request.record, "runtime.pid")
        commands = self._runtime_commands
        self._container = await in_thread(
            commands.prepare, self._container, step, dict(self.environment)
        )
        # what is killed with its `create` is not made behind our back
        before = [own_program("setpriv"), "--pdeathsig", "KILL", "--"]
        status = await call([*before, *commands.create(self._container, log, pid_file, console)])
        if status:
            reason, _ = await read_tail(log)
            raise EngineError(
                shortened(f"the container could not be created: {reason or f'status {status}'}")
            )
        await in_thread(os.chmod, pid_file, 0o600)  # runtimes make it by the caller's umask
        first = SomebodysChild(await in_thread(_read_pid, pid_file))
        self._first = first
        try:
            yield RuntimeProcess(first, self)
        finally:
            with trio.move_on_after(_PATIENCE, shield=True):
                first.kill()
                await first.ended()
                # what the runtime knows of it stays until `delete`, when its last hooks run
                await self._tell(None)
                self.stays = True
                self._request.stays()
            first.close()

    async def begin(self) -> None:
        """Call the runtime's `start`.

        Raises:
            EngineError: It has failed.
        """
        said: list[str] = []
        command = self._runtime_commands.start(self._container)
        async with (
            messages(said.append) as stderr,
            child(command, self._setting, stderr=stderr) as start,
        ):
            status = await start.wait()
        if status:
            reason = "; ".join(said) or f"status {status}"
            raise EngineError(shortened(f"the container could not be started: {reason}"))


class RuntimeProcess:
    """Its first process (see `supervisor.engines.base.Process`)."""

    def __init__(self, first: SomebodysChild, job: RuntimeJob) -> None:
        """Describe it."""
        self.pid = first.pid
        self._first = first
        self._job = job

    @property
    def ending(self) -> Ending | None:
        """How it has ended."""
        return self._first.ending

    @property
    def over(self) -> bool:
        """Whether it has ended, noticed or not."""
        return self._first.over

    async def start(self) -> None:
        """Let it run the container's program."""
        await self._job.begin()

    async def ended(self) -> Ending:
        """Wait for its end."""
        return await self._first.ended()


def _read_pid(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read(32))
