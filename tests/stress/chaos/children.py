"""The children of the program, and the orphans below it: started, and reaped in one place.

One subreaper for all containers: what `create` leaves behind becomes a child of this process, as
it becomes one of conmon or containerd's shim. Every child is reaped here, by whoever it was
started, so the statuses of anchors are seen as their parent sees them.
"""

import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

PR_SET_CHILD_SUBREAPER = 36
_DEFAULT = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
_KEPT = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended.

    Attributes:
        status: Its exit status; negative for a signal.
        out: What it printed.
        err: The same for standard error.
        seconds: How long it took.
    """

    status: int
    out: str
    err: str
    seconds: float


class Parent(Protocol):
    """Whose children commands are: this program, or one in a job."""

    async def spawn(
        self, argv: Sequence[str], environment: Mapping[str, str], stdio: tuple[int, int, int]
    ) -> int:
        """Start a command in a session of its own; descriptors stay the caller's."""
        ...

    async def wait(self, pid: int, since: float = 0.0) -> int:
        """Wait for a child that nobody else waits for; see `Children.wait`."""
        ...

    def has_ended(self, pid: int, since: float) -> bool:
        """Tell whether a child that began after `since` has ended."""
        ...


class Children:
    """All of them."""

    def __init__(self) -> None:
        self._waiting: dict[int, trio.Event] = {}
        self._ended: dict[int, tuple[float, int]] = {}
        self._reaping = trio.CancelScope(shield=True)

    async def reap(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reap whatever ends, until `leave`: also while everything is undone."""
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
        with self._reaping, trio.open_signal_receiver(signal.SIGCHLD) as signals:
            task_status.started()
            self._reap()
            async for _ in signals:
                self._reap()

    def leave(self) -> None:
        """Reap no more."""
        self._reaping.cancel()

    def _reap(self) -> None:
        now = time.monotonic()
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                return
            if found is None:
                break
            killed = found.si_code != os.CLD_EXITED
            self._ended[found.si_pid] = (now, -found.si_status if killed else found.si_status)
            event = self._waiting.pop(found.si_pid, None)
            if event is not None:
                event.set()
        if len(self._ended) > 4096:  # orphans that nobody asks for
            old = now - _KEPT
            self._ended = {pid: entry for pid, entry in self._ended.items() if entry[0] > old}

    async def spawn(
        self, argv: Sequence[str], environment: Mapping[str, str], stdio: tuple[int, int, int]
    ) -> int:
        """Start a command in a session of its own; descriptors stay the caller's."""
        return self._spawned(argv, environment, stdio)

    def _spawned(
        self, argv: Sequence[str], environment: Mapping[str, str], stdio: tuple[int, int, int]
    ) -> int:
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(stdio)],
            setsid=True,
            setsigdef=_DEFAULT,
            setsigmask=(),
        )
        self._ended.pop(pid, None)  # of an earlier process of that number
        return pid

    async def wait(self, pid: int, since: float = 0.0) -> int:
        """Wait for a child that nobody else waits for; negative for a signal.

        Args:
            pid: It.
            since: When it began at the earliest: an earlier one may have had that number.
        """
        if not self.has_ended(pid, since):
            event = self._waiting.setdefault(pid, trio.Event())
            await event.wait()
        return self._ended[pid][1]

    def has_ended(self, pid: int, since: float) -> bool:
        """Tell whether a child that began after `since` has ended."""
        entry = self._ended.get(pid)
        return entry is not None and entry[0] >= since

    async def run(
        self, argv: Sequence[str], environment: Mapping[str, str], data: bytes | None = None
    ) -> Done:
        """Run a command to its end; a caller that gives up leaves it running."""
        call = await begin(self, argv, environment, data)
        return await call.done()


class Call:
    """A command with its output.

    Attributes:
        pid: Its process id.
        out: Its standard output.
    """

    def __init__(self, parent: Parent, pid: int, out: "Stream", err: "Stream") -> None:
        self._parent = parent
        self._began = time.monotonic()
        self.pid = pid
        self.out, self._err = out, err

    async def done(self) -> Done:
        """Wait for its end and the end of what it prints."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.out.read)
                nursery.start_soon(self._err.read)
                status = await self._parent.wait(self.pid)
        finally:
            await self.out.aclose()
            await self._err.aclose()
        seconds = time.monotonic() - self._began
        return Done(status, self.out.text, self._err.text, seconds)


async def begin(
    parent: Parent,
    argv: Sequence[str],
    environment: Mapping[str, str],
    data: bytes | None = None,
    stdin: int | None = None,
) -> Call:
    """Begin a command.

    Args:
        parent: Whose child it is.
        argv: The command.
        environment: All of its environment; in a job, what it has besides that of the job.
        data: What it gets on its standard input.
        stdin: A descriptor for that instead; closed.
    """
    out, theirs_out = os.pipe()
    err, theirs_err = os.pipe()
    if stdin is not None:
        source = stdin
    else:
        source = os.open("/dev/null", os.O_RDONLY) if data is None else _filled(data)
    try:
        pid = await parent.spawn(argv, environment, (source, theirs_out, theirs_err))
    finally:
        for fd in (source, theirs_out, theirs_err):
            os.close(fd)
    return Call(parent, pid, Stream(out), Stream(err))


def _filled(data: bytes) -> int:
    """Return the end of a pipe that has some bytes in it, and no writer any more."""
    readable, writable = os.pipe()
    os.write(writable, data)
    os.close(writable)
    return readable


class Stream:
    """Our end of a pipe, or a terminal's master, that is read to its end.

    Attributes:
        data: What has come so far.
        ended: Nothing more will come.
    """

    def __init__(self, fd: int) -> None:
        self._stream = trio.lowlevel.FdStream(fd)
        self._writing = trio.Lock()
        self.data = bytearray()
        self.ended = trio.Event()
        self._grown = trio.Event()

    async def read(self) -> None:
        try:
            while part := await self._stream.receive_some():
                self.data += part
                self._grew()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # a terminal whose other side is gone, or closed by us
        self.ended.set()
        self._grew()

    def _grew(self) -> None:
        self._grown.set()
        self._grown = trio.Event()

    async def until(self, wanted: bytes) -> bool:
        """Wait for some bytes; False when the end came before them."""
        while wanted not in self.data:
            if self.ended.is_set():
                return False
            await self._grown.wait()
        return True

    async def write(self, data: bytes) -> None:
        """Write to the other side, if there is one."""
        async with self._writing:
            await self._stream.send_all(data)

    @property
    def text(self) -> str:
        """What has come so far."""
        return self.data.decode(errors="replace")

    async def aclose(self) -> None:
        """Close our end."""
        with trio.CancelScope(shield=True):
            await self._stream.aclose()
