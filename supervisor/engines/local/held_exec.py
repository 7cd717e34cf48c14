"""The programs of `exec` on this machine: a runtime in the foreground.

It is below a shell that notes its status, and outlives us; but where nothing of its container is
kept, or somebody has to read what it says first, it ends with us (`OwnPrograms`).
"""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
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
from scrun.model.states import Ending, exited, not_run, taken
from scrun.supervisor.children.persistent import foreign_process
from scrun.supervisor.children.processes import Child, ChildEnv, child, own_program
from scrun.supervisor.children.pumps import tee
from scrun.supervisor.contracts.engine import Program, Session
from scrun.supervisor.core.deposits import OWN, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.engines.failures import program_failure
from scrun.supervisor.shim.processes import handles

_PATIENCE = 5.0
_BEGINNING, _RETRY = 1.0, 0.01
_AGAIN = 0.1
_STATUS = 16
_SHELL_FD, _STATUS_FD = f"{OWN}shell", f"{OWN}status"
_SHELL = """\
exec {error}>&2 2>/dev/null
(exec 2>&{error} {error}>&-; exec {before} /bin/sh -c "$1")
printf %s "$?" >"$2"
"""
"""The shell's own words, such as `Terminated`, are for nobody. dash would redirect itself, too,
for a simple command, and say them there."""


def _command(script: str, status: int, *, ends_with_us: bool) -> list[str]:
    """Return the shell's command; it inherits the file for its status."""
    before = f"{own_program('setpriv')} --pdeathsig TERM --" if ends_with_us else ""
    shell = _SHELL.format(error=8 if status == 9 else 9, before=before)
    return ["/bin/sh", "-c", shell, "sh", script, f"/proc/self/fd/{status}"]


_Opened = tuple[Child, int, list[int]]


class HeldSession(Session):
    """An `exec` below such a shell."""

    def __init__(self, opened: AbstractAsyncContextManager[_Opened]) -> None:
        """`opened`: the shell, `begun` or `resumed`; the file for its status; see `begun`."""
        self._opened = opened
        self._shell: Child | None = None

    async def run(self) -> Ending:
        async with self._opened as (shell, status, failures):
            self._shell = shell
            try:
                await shell.wait()
            except trio.Cancelled:
                with trio.move_on_after(_PATIENCE, shield=True):
                    while not shell.ended:  # it may have yet to start the runtime: no event tells
                        _kill(shell, and_end_it=True)
                        with trio.move_on_after(_AGAIN):
                            await shell.wait()
                raise
            written = os.pread(status, _STATUS, 0)
        if not written:
            return taken("scrun-failure", "the program was ended: its shell ended first")
        code = int(written)
        return not_run(failures[0]) if code and failures else exited(code)

    async def signal(self, number: int) -> None:
        """Send a signal; in the first moments there may be nobody to get it."""
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
) -> AsyncIterator[_Opened]:
    """Run a program, if possible so that it can outlive us.

    Yields also the exit statuses, known when the block is left, for what the runtime says of a
    program that may not be there.
    """
    stdin, stdout, stderr = program.stdio
    deposit, failures = program.deposit, list[int]()
    ends_with_us = bool(deposit.why_not)  # else a successor ends it, if that cannot go on with it

    def check(content: bytes | bytearray) -> None:
        if (status := program_failure(content.decode(errors="replace"))) is not None:
            failures.append(status)

    async with AsyncExitStack() as stack:
        status = os.memfd_create("scrun-status", os.MFD_CLOEXEC)
        stack.callback(os.close, status)
        if not (program.terminal or program.program_is_known):
            deposit.give_up("its standard error is searched for the runtime's message")
            stderr = await stack.enter_async_context(tee(stderr, child_env, check))
        async with child(
            _command(script, status, ends_with_us=ends_with_us),
            child_env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=[status, *program.preserved],
            dies_with_us=ends_with_us,
        ) as shell:
            with ExitStack() as noted:
                noted.enter_context(programs.noted(shell))
                deposit.hold({_SHELL_FD: shell.pidfd, _STATUS_FD: status}, target=shell.pid)
                program.running()
                if deposit.is_kept:
                    noted.close()
                yield shell, status, failures


@asynccontextmanager
async def resumed(found: Inheritance, running: Callable[[], None]) -> AsyncIterator[_Opened]:
    """Go on with what another supervisor has begun; call `running` when it can get signals."""
    status = found.take(_STATUS_FD)
    try:
        pid, pidfd = found.facts["target"], found.take(_SHELL_FD)
        async with foreign_process(pid, pidfd, "exec", grace=_PATIENCE) as shell:
            _pass_on(shell, signal.SIGWINCH)  # it may have been resized while nobody told
            running()
            yield shell, status, []
    finally:
        os.close(status)


def _pass_on(shell: Child, number: int) -> bool:
    """Send SIGKILL to the program, or another signal to the runtime, which passes it on.

    Returns whether there is a runtime.
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


def kill_started(runtime: Child) -> None:
    """Kill the children of a runtime in the foreground."""
    for pid in [] if runtime.ended else pids_of_children(runtime.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
    """End the programs that a dead supervisor has left, and return whether there was any."""
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
