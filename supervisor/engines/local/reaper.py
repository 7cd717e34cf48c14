"""The supervisor's side of a reaper (see `supervisor.reapers.runtime`)."""

import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

import trio

from scrun.model.states import Ending, exited, taken
from scrun.supervisor.children.processes import Child, ChildEnv, child
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.deposits import JOB, Deposit
from scrun.supervisor.core.places import program
from scrun.supervisor.engines.local.exits import ForeignChild
from scrun.supervisor.engines.local.own_devices import spared
from scrun.supervisor.reapers.runtime import CONSOLE

_PROGRAM = program("reapers", "runtime")
_LINE = 16
TERMINAL = 1.0
"""Seconds that a reaper has for the end of its terminal."""


class Reaper:
    """The process that is the parent of a container's first process, until that ends.

    Attributes:
        console: The placeholder of the console socket in the command, if there is a terminal.
        process: The process, once it is called.
        status: The file to which it writes the status of the first process.
    """

    def __init__(
        self, stack: AsyncExitStack, step: Step, record: str, pid_file: str, child_env: ChildEnv
    ) -> None:
        """`stack`: the process ends when this is left."""
        self.console = CONSOLE if step.terminal else None
        self.process: Child | None = None
        self.status = os.memfd_create("scrun-status", os.MFD_CLOEXEC)
        self._stack = stack
        self._stack.callback(os.close, self.status)
        self._stdio = spared(step.stdio, record)
        self._preserved = step.preserved
        self._record = record
        self._pid_file = pid_file
        self._child_env = child_env

    async def call(self, command: Sequence[str]) -> int:
        """Make it run the command that creates the container; return the command's exit status."""
        stdin, stdout, stderr = self._stdio
        line, created = os.pipe()
        async with trio.lowlevel.FdStream(line) as stream:
            try:
                program = [sys.executable, "-I", "-S", _PROGRAM]
                program += [str(created), str(self.status), self._pid_file]
                program += [",".join(map(str, self._preserved))]
                self.process = await self._stack.enter_async_context(
                    child(
                        [*program, *command],
                        self._child_env,
                        stdin=stdin,
                        stdout=stdout,
                        stderr=stderr,
                        pass_fds=[created, self.status, *self._preserved],
                        grace=TERMINAL,
                        directory=self._record,
                    )
                )
            finally:
                os.close(created)
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
        return ReaperChild(pid, self.process, self.status)

    def keep(self, deposit: Deposit) -> Child:
        """Keep it for a successor, and return its process."""
        assert self.process is not None
        kept = {f"{JOB}reaper": self.process.pidfd, f"{JOB}status": self.status}
        deposit.hold(kept, reaper=self.process.pid)
        self.process.outlives_us()
        return self.process


class ReaperChild(ForeignChild):
    """The child of a reaper, which writes its exit status down, and ends."""

    def __init__(self, pid: int, reaper: Child, status: int, pidfd: int | None = None) -> None:
        """Open a pidfd for it.

        Args:
            pidfd: Its pidfd, if there is one; owned from now on.

        Raises:
            OSError: It is gone.
        """
        super().__init__(pid, pidfd)
        self._reaper = reaper
        self._status = status

    async def ended(self) -> Ending:
        """Wait for its end."""
        async with self._lock:
            if self.ending is None:
                await self._reaper.wait()
                if written := os.pread(self._status, _LINE, 0):
                    self.ending = exited(int(written))
                else:
                    self.kill()
                    text = "the container was ended: its reaper ended first"
                    self.ending = taken("scrun-failure", text)
        return self.ending
