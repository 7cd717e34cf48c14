"""Another program in a container on this machine: the runtime's `exec`, in the foreground."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.model.identity import identity_of, is_dead
from scrun.model.record import ProcessIdentity
from scrun.model.states import Ending, exited, not_run
from scrun.supervisor.children.node_scripts import exec_script, process_variables
from scrun.supervisor.children.processes import Child, ChildEnv, child, shell_status
from scrun.supervisor.children.pumps import tee
from scrun.supervisor.contracts.engine import Program
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.engines.failures import program_failure

_PATIENCE = 5.0


class Programs:
    """The programs in a container, noted for a successor: they have to end with us."""

    def __init__(self, deposit: Deposit) -> None:
        """Begin without any."""
        self._deposit = deposit
        self._running: dict[int, ProcessIdentity] = {}

    @contextmanager
    def noted(self, runtime: Child) -> Iterator[None]:
        """Have one more while the block runs, in the foreground of a runtime."""
        self._running[runtime.pid] = identity_of(runtime.pid)
        self._note()
        try:
            yield
        finally:
            del self._running[runtime.pid]
            self._note()

    def _note(self) -> None:
        self._deposit.note(programs=msgspec.to_builtins([*self._running.values()]))


def end_left(facts: Mapping[str, Any]) -> None:
    """End the programs that another supervisor has left: the runtime passes SIGTERM on only."""
    for runtime in msgspec.convert(facts.get("programs", []), list[ProcessIdentity]):
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(runtime.pid)
            try:
                if not is_dead(runtime):
                    _kill(_children(runtime.pid))
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)


class LocalSession:
    """See `supervisor.contracts.engine.Session`."""

    def __init__(
        self,
        command: str,
        state: str,
        child_env: ChildEnv,
        program: Program,
        programs: Programs,
    ) -> None:
        """Create it; nothing runs yet.

        Args:
            command: The runtime's `exec`.
            state: The runtime's command that prints the container's state, or "".
            child_env: The environment of the command.
            program: What to run.
            programs: The others beside it.

        Raises:
            BundleError: The program's description is too long.
        """
        variables = process_variables(program.process)
        self._command = ["/bin/sh", "-c", exec_script(command, state, variables)]
        self._child_env = child_env
        self._variables = variables
        self._program = program
        self._programs = programs
        self._runtime: Child | None = None

    async def run(self) -> Ending:
        """Run it to its end."""
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
            self._command,
            self._child_env.with_more(self._variables),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
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
                        kill_started(runtime, and_end_it=True)
                        await runtime.wait()
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
        runtime: The runtime.
        and_end_it: Also end the runtime, so that it starts nothing else.
    """
    if runtime.ended:
        return
    started = _children(runtime.pid)
    if and_end_it:
        runtime.signal(signal.SIGTERM)
    _kill(started)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """List the children of an unreaped process (proc(5), `children`)."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found
