"""The supervisor's side of a reaper (see `supervisor.reapers.runtime`)."""

import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

import trio

from scrun.model.states import Ending, exited, taken
from scrun.supervisor.children.processes import Child, ChildEnv, child
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.places import program
from scrun.supervisor.engines.local.exits import ForeignChild
from scrun.supervisor.reapers.runtime import CONSOLE

_PROGRAM = program("reapers", "runtime")
_TERMINAL = 1.0


class Reaper:
    """The process that is the parent of a container's first process, until that ends.

    Attributes:
        console: The placeholder of the console socket in the command, if there is a terminal.
        process: The process, once it is called.
    """

    def __init__(
        self, stack: AsyncExitStack, step: Step, record: str, pid_file: str, child_env: ChildEnv
    ) -> None:
        """Create it; nothing runs yet.

        Args:
            stack: The process ends when this is left.
            step: The container.
            record: Its record.
            pid_file: Where the runtime writes the pid of the first process.
            child_env: The environment of the runtime.
        """
        self.console = CONSOLE if step.terminal else None
        self.process: Child | None = None
        self._stack = stack
        self._stdio = step.stdio
        self._record = record
        self._pid_file = pid_file
        self._child_env = child_env

    async def call(self, command: Sequence[str]) -> int:
        """Make it run the command that creates the container; return the command's exit status."""
        stdin, stdout, stderr = self._stdio
        line, status_fd = os.pipe()
        async with trio.lowlevel.FdStream(line) as stream:
            try:
                program = [sys.executable, "-I", "-S", _PROGRAM, str(status_fd), self._pid_file]
                self.process = await self._stack.enter_async_context(
                    child(
                        [*program, *command],
                        self._child_env,
                        stdin=stdin,
                        stdout=stdout,
                        stderr=stderr,
                        pass_fds=[status_fd],
                        grace=_TERMINAL,
                        directory=self._record,
                    )
                )
            finally:
                os.close(status_fd)
            line_of_status = await stream.receive_some()
        return (
            int(line_of_status)
            if line_of_status.strip().lstrip(b"-").isdigit()
            else await self.process.wait()
        )

    def child(self, pid: int) -> "ReaperChild":
        """Open the first process.

        Raises:
            OSError: It is gone.
        """
        assert self.process is not None  # `call` was called
        return ReaperChild(pid, self.process)


class ReaperChild(ForeignChild):
    """The child of a reaper, whose own exit status is the child's."""

    def __init__(self, pid: int, reaper: Child) -> None:
        """Open a pidfd for it."""
        super().__init__(pid)
        self._reaper = reaper

    async def ended(self) -> Ending:
        """Wait for its end."""
        async with self._lock:
            if self.ending is None:
                status = await self._reaper.wait()
                if status < 0:
                    self.kill()
                    text = f"the container was ended: its reaper ended first, with {status}"
                    self.ending = taken("scrun-failure", text)
                else:
                    self.ending = exited(status)
        return self.ending
