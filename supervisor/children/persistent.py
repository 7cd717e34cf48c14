"""Children that outlive us if a deposit keeps them, and those of a supervisor that has died.

There is never a second one of each. Between the moment when a child runs and the moment when a
deposit has its pidfd, the supervisor may be killed, and its successor would start another one. So
a shell waits for a word on a pipe before it executes the child's program, and ends without that at
end of file. The deposit gets the other end together with the pidfd: from then on the successor can
say the word as well.

A canceller is a command that runs when all are dead: we, our keeper, and any successor. A shell
reads from a socket. We have the other end, and so has the keeper. At its end of file the command
is executed; at a line there is nothing to do any more.

The wait status of a process that another process reaps has two sources: proc(5) while the process
is a zombie, if the kernel lets us read it, and from Linux 6.15 on the pidfd, once it was reaped.
"""

import fcntl
import os
import select
import signal
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from signal import pidfd_send_signal

import msgspec
import trio

from scrun.supervisor.children.processes import Child, ChildEnv, child
from scrun.supervisor.core.deposits import STEP, Deposit
from scrun.supervisor.core.inheritance import Inheritance


class ForeignProcess(Child):
    """A process that is not a child of ours: we have its pidfd, but will not get its status."""

    def __init__(self, pid: int, pidfd: int, name: str) -> None:
        self.pid = pid
        self.name = name
        self._pidfd = pidfd
        self._over = False

    async def wait(self) -> int:
        """Wait for its end; return 1, for nobody tells us."""
        if not self._over:
            await trio.lowlevel.wait_readable(self._pidfd)
            self._over = True
        return 1

    @property
    def ended(self) -> bool:
        """Whether we know that it has ended."""
        return self._over

    def signal(self, number: int) -> None:
        """Send a signal; does nothing if it has ended."""
        with suppress(ProcessLookupError):
            pidfd_send_signal(self._pidfd, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to it alone: the number of its group may be somebody else's by now."""
        self.signal(number)


@asynccontextmanager
async def foreign_process(
    pid: int, pidfd: int, name: str, *, grace: float
) -> AsyncIterator[ForeignProcess]:
    """Own a process for a block; it is ended when the block is left, as by `child`."""
    running = ForeignProcess(pid, pidfd, name)
    try:
        yield running
    finally:
        try:
            if not running.ended:
                await running.end(grace=grace)
        finally:
            os.close(pidfd)


# struct pidfd_info of linux/pidfd.h, in its first size: mask, …, exit_code
_INFO = struct.Struct("=Q52xi")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT = 1 << 3

_REAPED, _PAUSE = 2.0, 0.02


async def status_of(pid: int, pidfd: int) -> int | None:
    """Wait for the end of a process, and return its wait status (waitpid(2)), if it can be read.

    The kernel shows the status of a process that has not executed its program yet to nobody
    (ptrace(2), access mode): it has to be reaped first, and no event tells us when that is.
    """
    await trio.lowlevel.wait_readable(pidfd)
    with trio.move_on_after(_REAPED):
        while _is_zombie(pidfd):
            if (status := _read(pid, pidfd)) is not None:
                return status
            await trio.sleep(_PAUSE)
    return _read(pid, pidfd)  # it may have been reaped right after the last attempt


def _is_zombie(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _read(pid: int, pidfd: int) -> int | None:
    status = _of_reaped(pidfd)
    return _of_zombie(pid, pidfd) if status is None else status


def _of_reaped(pidfd: int) -> int | None:
    """Return the wait status of a reaped process; None if it is not reaped, or not known."""
    info = bytearray(_INFO.pack(_EXIT, 0))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:  # before 6.13, or gone in a kernel before 6.15
        return None
    mask, status = _INFO.unpack(info)
    return status if mask & _EXIT else None


def _of_zombie(pid: int, pidfd: int) -> int | None:
    """Return the wait status of a zombie, or None.

    The kernel shows 0 to those without permission, which reading its namespaces needs as well.
    """
    try:
        with suppress(FileNotFoundError):  # a zombie has no namespaces
            os.readlink(f"/proc/{pid}/ns/mnt")
        with open(f"/proc/{pid}/stat", "rb") as file:
            status = int(file.read().rpartition(b")")[2].split()[49])
        signal.pidfd_send_signal(pidfd, 0)  # the pid still belongs to this process
    except (OSError, ValueError, IndexError):
        return None
    return status


_CANCELLER = 'read -r _ || exec "$@"'


@asynccontextmanager
async def canceller(
    argv: Sequence[str], child_env: ChildEnv, hold: Callable[[int], None]
) -> AsyncIterator[None]:
    """Run a command if we, and all who could adopt, die while the block runs.

    `hold` keeps a duplicate of our end, before anybody could see its end of file. Raises OSError
    if there is no shell.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hold(ours.fileno())
        words = ["/bin/sh", "-c", _CANCELLER, "sh", *argv]
        async with child(words, child_env, stdin=theirs.fileno(), dies_with_us=False):
            theirs.close()
            try:
                yield
            finally:
                dismiss(ours.fileno())


def dismiss(fd: int) -> None:
    """Let a canceller end without its command; the other end stays the caller's."""
    with suppress(OSError):
        os.write(fd, b"\n")  # into an empty socket: this does not block


def is_heard(line: int) -> bool:
    """Return whether anybody has the other end of a socket."""
    there = select.poll()
    there.register(line, 0)
    return not there.poll(0)  # else it has hung up


STDIO = f"{STEP}stdio."
"""Begins the names of the standard streams that a child will have: they go when it has them."""

_GATE, _LEASH = f"{STEP}gate", f"{STEP}leash"
_END = 'kill -s TERM "$0"'
# dash can name descriptors of one digit only, so it opens the pipe once more
_WAIT = 'read -r _ <"/proc/self/fd/$0" && exec "$@"'


def behind_gate(waits: int, argv: Sequence[str]) -> list[str]:
    """Return a command that waits for the word at the end of a pipe, and becomes another one."""
    return ["/bin/sh", "-c", _WAIT, str(waits), *argv]


def open_gate(fd: int) -> None:
    """Say the word; it may have been said, or nobody may wait for it any more."""
    with suppress(BrokenPipeError):
        os.write(fd, b"\n")


@asynccontextmanager
async def persistent_child(
    argv: Sequence[str],
    child_env: ChildEnv,
    deposit: Deposit | None,
    name: str,
    *,
    stdio: tuple[int, int, int],
    pass_fds: Sequence[int] = (),
    grace: float,
    whole_group: bool = False,
    directory: str = "/",
    leashed: bool = False,
) -> AsyncIterator[Child]:
    """Run a child while the block runs, or longer, if we are killed.

    A deposit that is not kept yet may be given up, with all that the child needs.

    Args:
        argv: See `processes.child`; likewise the rest.
        deposit: Keeps it; the standard streams no longer when it has them. None: it dies with us.
        leashed: Whether it gets SIGTERM if nobody adopts it, as nothing else would end it.
    """
    gate = -1
    with ExitStack() as ours:
        if deposit is not None and deposit.is_kept:
            waits, gate = os.pipe()
            ours.callback(os.close, waits)
            ours.callback(os.close, gate)
            argv, pass_fds = behind_gate(waits, argv), [*pass_fds, waits]
        async with (
            AsyncExitStack() as stack,
            child(
                argv,
                child_env,
                stdin=stdio[0],
                stdout=stdio[1],
                stderr=stdio[2],
                pass_fds=pass_fds,
                grace=grace,
                dies_with_us=deposit is None,
                whole_group=whole_group,
                directory=directory,
            ) as running,
        ):
            if deposit is not None:
                if gate >= 0 and leashed:
                    # left after the child, so there is no moment in which nobody would end that
                    await stack.enter_async_context(_leash(running.pid, child_env, deposit))
                more = {_GATE: gate} if gate >= 0 else {}
                deposit.hold({f"{STEP}{name}": running.pidfd, **more}, **{name: running.pid})
                if gate >= 0:
                    open_gate(gate)
                    ours.close()
                    deposit.drop(_GATE, STDIO)
            yield running


@asynccontextmanager
async def _leash(pid: int, child_env: ChildEnv, deposit: Deposit) -> AsyncIterator[None]:
    plain = msgspec.structs.replace(child_env, prefix=(), descriptors=())
    end = ["/bin/sh", "-c", _END, str(pid)]
    try:
        async with canceller(end, plain, lambda line: deposit.hold({_LEASH: line})):
            yield
    finally:
        deposit.drop(_LEASH)


@asynccontextmanager
async def inherited_child(
    found: Inheritance, name: str, *, grace: float
) -> AsyncIterator[ForeignProcess]:
    """Own a child that another supervisor has begun so; see `persistent_child`."""
    if _GATE in found.fds:
        gate = found.take(_GATE)
        open_gate(gate)
        os.close(gate)
    pidfd = found.take(f"{STEP}{name}")
    leash = found.take(_LEASH) if _LEASH in found.fds else -1
    try:
        async with foreign_process(found.facts[name], pidfd, name, grace=grace) as running:
            yield running
    finally:
        if leash >= 0:
            dismiss(leash)
            os.close(leash)
