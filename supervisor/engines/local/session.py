"""Another program in a container on this machine: the runtime's `exec`, in the foreground.

It outlives us below a shell (`held_exec`), unless somebody has to read what it says first.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import trio

from scrun.core.errors import EngineError
from scrun.model.states import Ending, exited, not_run
from scrun.supervisor.children.foreign import foreign_process
from scrun.supervisor.children.node_scripts import exec_script, process_variables
from scrun.supervisor.children.processes import Child, ChildEnv, child, shell_status
from scrun.supervisor.children.pumps import tee
from scrun.supervisor.contracts.engine import Program
from scrun.supervisor.core.deposits import OWN
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.engines.failures import program_failure
from scrun.supervisor.engines.local.held_exec import (
    HeldExec,
    OwnPrograms,
    end,
    held_command,
    pids_of_children,
)
from scrun.supervisor.engines.local.own_devices import spared
from scrun.supervisor.shim.processes import handles

_PATIENCE = 5.0
_SHELL, _STATUS = f"{OWN}shell", f"{OWN}status"


class LocalSession:
    """See `supervisor.contracts.engine.Session`."""

    def __init__(
        self,
        command: str,
        state: str,
        child_env: ChildEnv,
        program: Program,
        programs: OwnPrograms,
        record: str,
    ) -> None:
        """Create it; nothing runs yet.

        Args:
            state: The runtime's command that prints the container's state, or "".

        Raises:
            BundleError: The program's description is too long.
        """
        variables = process_variables(program.process)
        self._script = exec_script(command, state, variables)
        self._child_env = child_env
        self._variables = variables
        self._program = program
        self._programs = programs
        self._stdio = spared(program.stdio, record)
        self._runtime: Child | None = None
        self._held: HeldExec | None = None

    async def run(self) -> Ending:
        program = self._program
        stdin, stdout, stderr = self._stdio
        if program.terminal or program.program_is_known:
            if not program.deposit.why_not:
                return await self._run_held()
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

    async def _run_held(self) -> Ending:
        """Run it so that it can outlive us."""
        program, deposit = self._program, self._program.deposit
        stdin, stdout, stderr = self._stdio
        status = os.memfd_create("scrun-status", os.MFD_CLOEXEC)
        try:
            async with child(
                held_command(self._script, status),
                self._child_env.with_more(self._variables),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[status, *program.preserved],
                dies_with_us=False,
            ) as shell:
                self._held = HeldExec(shell, status)
                with self._programs.noted(shell):
                    deposit.hold({_SHELL: shell.pidfd, _STATUS: status}, target=shell.pid)
                    program.running()
                    if not deposit.is_kept:
                        return await self._held.ended()
                return await self._held.ended()
        finally:
            os.close(status)

    async def _run(self, stdin: int, stdout: int, stderr: int) -> int:
        async with child(
            ["/bin/sh", "-c", self._script],
            self._child_env.with_more(self._variables),
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
        if self._held is not None:
            await self._held.signal(number)
            return
        if self._runtime is None:
            raise EngineError("the program is not running yet")
        if number == signal.SIGKILL:
            self._kill()
        else:
            self._runtime.signal(number)

    async def handles(self, number: int) -> bool:
        if self._held is not None:
            return self._held.handles(number)
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
        if self._held is not None:
            self._held.try_signal(signal.SIGWINCH)
        elif self._runtime is not None:
            self._runtime.signal(signal.SIGWINCH)


class ResumedLocalSession:
    """A program that another supervisor has had run, which has died."""

    def __init__(self, found: Inheritance, running: Callable[[], None]) -> None:
        """`running`: called when it can get signals."""
        self._found = found
        self._running = running
        self._held: HeldExec | None = None

    async def run(self) -> Ending:
        found, status = self._found, self._found.take(_STATUS)
        try:
            pid, pidfd = found.facts["target"], found.take(_SHELL)
            async with foreign_process(pid, pidfd, "exec", grace=_PATIENCE) as shell:
                self._held = HeldExec(shell, status)
                self.resized()  # it may have been while nobody told
                self._running()
                return await self._held.ended()
        finally:
            os.close(status)

    async def signal(self, number: int) -> None:
        if self._held is not None:
            await self._held.signal(number)

    async def handles(self, number: int) -> bool:
        return self._held is not None and self._held.handles(number)

    def resized(self) -> None:
        if self._held is not None:
            self._held.try_signal(signal.SIGWINCH)


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
