"""The programs of `exec` on this machine: a runtime in the foreground.

It is below a shell that outlives us and notes its status; or has to end with us (`OwnPrograms`).
"""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.core.ready import ready
from scrun.core.typed import convert
from scrun.model.identity import identity_of, is_dead
from scrun.model.record import ProcessIdentity
from scrun.model.states import Ending, exited, taken
from scrun.supervisor.children.persistent import foreign_process
from scrun.supervisor.children.processes import Child, ChildEnv, child
from scrun.supervisor.contracts.engine import Program, Session
from scrun.supervisor.core.deposits import OWN, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.shim.processes import handles

_PATIENCE = 5.0
_BEGINNING, _RETRY = 1.0, 0.01
_AGAIN = 0.1
_STATUS = 16
_SHELL_FD, _STATUS_FD = f"{OWN}shell", f"{OWN}status"
_SHELL = """\
exec {error}>&2 2>/dev/null
(exec 2>&{error} {error}>&-; exec /bin/sh -c "$1")
printf %s "$?" >"$2"
"""
"""The shell's own words, such as `Terminated`, are for nobody. dash would redirect itself, too,
for a simple command, and say them there."""


def _command(script: str, status: int) -> list[str]:
    """Return the shell's command.

    Args:
        status: The file for its status, which the shell inherits.
    """
    shell = _SHELL.format(error=8 if status == 9 else 9)
    return ["/bin/sh", "-c", shell, "sh", script, f"/proc/self/fd/{status}"]


class HeldSession(Session):
    """An `exec` below such a shell."""

    def __init__(self, opened: AbstractAsyncContextManager[tuple[Child, int]]) -> None:
        """`opened`: the shell, `begun` or `resumed`, and the file for its status."""
        self._opened = opened
        self._shell: Child | None = None

    async def run(self) -> Ending:
        async with self._opened as (shell, status):
            self._shell = shell
            try:
                await shell.wait()
            except trio.Cancelled:
                with trio.move_on_after(_PATIENCE, shield=True):
                    await end(shell, lambda: _kill(shell, and_end_it=True))
                raise
            if written := os.pread(status, _STATUS, 0):
                return exited(int(written))
            return taken("scrun-failure", "the program was ended: its shell ended first")

    async def signal(self, number: int) -> None:
        """Send a signal; in the first moments there may be nobody to get it.

        Raises:
            EngineError: The program is not running yet.
        """
        if (shell := self._shell) is None:
            raise EngineError("the program is not running yet")
        with trio.move_on_after(_BEGINNING):
            while not (_pass_on(shell, number) or shell.ended):  # noqa: ASYNC110
                await trio.sleep(_RETRY)

    async def handles(self, number: int) -> bool:
        if (shell := self._shell) is None:
            return False
        with _children(shell.pid, shell.pidfd) as runtimes:
            programs = [pid for runtime in runtimes for pid in pids_of_children(runtime)]
            return any(handles(pid, number) for pid in programs)

    def resized(self) -> None:
        if self._shell is not None:
            _pass_on(self._shell, signal.SIGWINCH)


@asynccontextmanager
async def begun(
    script: str, child_env: ChildEnv, program: Program, programs: "OwnPrograms"
) -> AsyncIterator[tuple[Child, int]]:
    """Run a program so that it can outlive us."""
    stdin, stdout, stderr = program.stdio
    deposit, status = program.deposit, os.memfd_create("scrun-status", os.MFD_CLOEXEC)
    try:
        async with child(
            _command(script, status),
            child_env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=[status, *program.preserved],
            dies_with_us=False,
        ) as shell:
            with ExitStack() as noted:
                noted.enter_context(programs.noted(shell))
                deposit.hold({_SHELL_FD: shell.pidfd, _STATUS_FD: status}, target=shell.pid)
                program.running()
                if deposit.is_kept:
                    noted.close()
                yield shell, status
    finally:
        os.close(status)


@asynccontextmanager
async def resumed(
    found: Inheritance, running: Callable[[], None]
) -> AsyncIterator[tuple[Child, int]]:
    """Go on with a program that another supervisor has begun.

    Args:
        running: Called when it can get signals.
    """
    status = found.take(_STATUS_FD)
    try:
        pid, pidfd = found.facts["target"], found.take(_SHELL_FD)
        async with foreign_process(pid, pidfd, "exec", grace=_PATIENCE) as shell:
            _pass_on(shell, signal.SIGWINCH)  # it may have been resized while nobody told
            running()
            yield shell, status
    finally:
        os.close(status)


def _pass_on(shell: Child, number: int) -> bool:
    """Send SIGKILL to the program, or another signal to the runtime, which passes it on.

    Returns:
        Whether there is a runtime.
    """
    if number == signal.SIGKILL:
        return _kill(shell)
    with _children(shell.pid, shell.pidfd) as runtimes:
        for runtime in runtimes.values():
            _signal(runtime, number)
        return bool(runtimes)


def _kill(shell: Child, *, and_end_it: bool = False) -> bool:
    """Kill the program; also end the runtime, if it is to start nothing more."""
    with _children(shell.pid, shell.pidfd) as runtimes:
        for pid, pidfd in runtimes.items():
            with _children(pid, pidfd) as programs:
                if and_end_it:
                    _signal(pidfd, signal.SIGTERM)
                for program in programs.values():
                    _signal(program, signal.SIGKILL)
        return bool(runtimes)


async def end(shell: Child, kill: Callable[[], object]) -> None:
    """Kill what a shell has started until it ends: it may have yet to start that.

    No event tells when it does so; the caller has a deadline.
    """
    while not shell.ended:
        kill()
        with trio.move_on_after(_AGAIN):
            await shell.wait()


def _signal(pidfd: int, number: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


@contextmanager
def _children(pid: int, pidfd: int) -> Iterator[dict[int, int]]:
    """Yield the pidfds of a process' children, by pid; none if it has ended.

    Nothing keeps its number, nor theirs, from being used again: so they are listed twice, and the
    process looked at afterwards.
    """
    found: dict[int, int] = {}
    try:
        for child in pids_of_children(pid):
            with suppress(ProcessLookupError):
                found[child] = os.pidfd_open(child)
        still = pids_of_children(pid)
        over, _ = ready([pidfd], seconds=0)
        yield {} if over else {child: found[child] for child in still if child in found}
    finally:
        for fd in found.values():
            os.close(fd)


def pids_of_children(pid: int) -> list[int]:
    """List the children of a process (proc(5), `children`)."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


class OwnPrograms:
    """The programs in a container that have to end with us, noted for a successor."""

    def __init__(self, deposit: Deposit) -> None:
        self._deposit = deposit
        self._running: dict[int, ProcessIdentity] = {}

    @contextmanager
    def noted(self, runtime: Child) -> Iterator[None]:
        """Note one more, in the foreground of a runtime, while the block runs."""
        self._running[runtime.pid] = identity_of(runtime.pid)
        self._note()
        try:
            yield
        finally:
            del self._running[runtime.pid]
            self._note()

    def _note(self) -> None:
        self._deposit.note(programs=msgspec.to_builtins([*self._running.values()]))


def end_left(facts: Mapping[str, Any]) -> bool:
    """End the programs that another supervisor has left: the runtime passes SIGTERM on only.

    Returns:
        Whether there was any.
    """
    programs = convert(facts.get("programs", []), list[ProcessIdentity])
    for runtime in programs:
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(runtime.pid)
            try:
                if not is_dead(runtime):
                    for pid in _below(runtime.pid):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
    return bool(programs)


def _below(pid: int) -> list[int]:
    """List the runtime, if that is below a shell, and the program; first those below."""
    children = pids_of_children(pid)
    return [below for child in children for below in pids_of_children(child)] + children
