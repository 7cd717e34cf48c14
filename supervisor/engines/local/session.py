"""Another program in a container on this machine: the runtime's `exec`, in the foreground.

This one ends with us, as somebody has to read what it says first; others do not (`held_exec`).
"""

import os
import signal
from contextlib import suppress

import trio

from scrun.core.errors import EngineError
from scrun.model.states import Ending, exited, not_run
from scrun.supervisor.children.processes import Child, ChildEnv, child, shell_status
from scrun.supervisor.children.pumps import tee
from scrun.supervisor.contracts.engine import Program, Session
from scrun.supervisor.engines.failures import program_failure
from scrun.supervisor.engines.local.held_exec import OwnPrograms, end, pids_of_children
from scrun.supervisor.shim.processes import handles

_PATIENCE = 5.0


class LocalSession(Session):
    """An `exec` that ends with us."""

    def __init__(
        self, script: str, child_env: ChildEnv, program: Program, programs: OwnPrograms
    ) -> None:
        self._script = script
        self._child_env = child_env
        self._program = program
        self._programs = programs
        self._runtime: Child | None = None

    async def run(self) -> Ending:
        program = self._program
        stdin, stdout, stderr = program.stdio
        if program.terminal or program.program_is_known:
            return exited(await self._run(stdin, stdout, stderr))
        failures: list[int] = []

        def check_stderr(content: bytes | bytearray) -> None:
            if (status := program_failure(content.decode(errors="replace"))) is not None:
                failures.append(status)

        async with tee(stderr, self._child_env, check_stderr) as pipe:
            status = await self._run(stdin, stdout, pipe)
        if status and failures:
            return not_run(failures[0])
        return exited(status)

    async def _run(self, stdin: int, stdout: int, stderr: int) -> int:
        async with child(
            ["/bin/sh", "-c", self._script],
            self._child_env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=self._program.preserved,
            grace=1.0,
        ) as runtime:
            self._runtime = runtime
            with self._programs.noted(runtime):
                self._program.running()
                try:
                    return shell_status(await runtime.wait())
                except trio.Cancelled:
                    # The program is the runtime's child, and would outlive it; or it does not
                    # exist yet, because the script still waits for the container.
                    with trio.move_on_after(_PATIENCE, shield=True):
                        await end(runtime, lambda: kill_started(runtime, and_end_it=True))
                    raise

    async def signal(self, number: int) -> None:
        """Send a signal to the program; the runtime passes on all but SIGKILL.

        Raises:
            EngineError: The program is not running yet.
        """
        if self._runtime is None:
            raise EngineError("the program is not running yet")
        if number == signal.SIGKILL:
            self._kill()
        else:
            self._runtime.signal(number)

    async def handles(self, number: int) -> bool:
        runtime = self._runtime
        if runtime is None or runtime.ended:
            return False
        return any(handles(pid, number) for pid in pids_of_children(runtime.pid))

    def _kill(self) -> None:
        """Kill the program; the runtime then exits with its status."""
        if self._runtime is not None:
            kill_started(self._runtime)

    def resized(self) -> None:
        """Tell the runtime that the terminal has a new size."""
        if self._runtime is not None:
            self._runtime.signal(signal.SIGWINCH)


def kill_started(runtime: Child, *, and_end_it: bool = False) -> None:
    """Kill the children of a runtime in the foreground.

    Args:
        and_end_it: Also end the runtime, so that it starts nothing else.
    """
    if runtime.ended:
        return
    started = pids_of_children(runtime.pid)
    if and_end_it:
        runtime.signal(signal.SIGTERM)
    _kill(started)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
