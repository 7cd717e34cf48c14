"""Log files: those of users, on any file system, and those of limited size in the root directory.

The file system of a `[log] file` may hang. Each has a thread that opens and writes it, and a
bounded queue; nobody waits for either. Messages that do not fit are dropped and counted; the count
is logged once the file accepts writes again.

A container's output and its log grow to a limit. Each consists of two files of half the limit; the
older one has the suffix `.1`, and is discarded when the newer one is full. The root directory may
be in memory and is shared by all containers of the user. So on a full file system the older one is
discarded at once, and the limit is halved: others need the space for their records.
"""

import contextlib
import os
import stat
import threading
import time
from collections import deque

import trio

from scrun.cli.failure import log_line
from scrun.core.errors import SettingsError
from scrun.settings.file.load import Log
from scrun.supervisor.log.supervisor_log import log

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_PATIENCE = 2.0
_WAITING = 1 << 20  # bytes

_open: "dict[str, LogFile]" = {}
_closing: "list[LogFile]" = []


class LogFile:
    """One file, of several containers; opened when it is open, or has a failure."""

    def __init__(self, path: str) -> None:
        """Start opening the file; in the event loop."""
        self.path = path
        self.users = 0
        self.opened = trio.Event()
        self.failure: OSError | None = None
        self._token = trio.lowlevel.current_trio_token()
        self._queue: deque[bytes] = deque()
        self._room = _WAITING
        self._lost = 0
        self._ends = False
        self._changed = threading.Condition()
        # a daemon: a hung thread must not keep the supervisor alive
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        with self._changed:
            if self._room < len(line):
                if not self._lost:
                    log.warning("log.file: %s accepts no writes; dropping messages", self.path)
                self._lost += 1
                return
            self._room -= len(line)
            self._queue.append(line)
            self._changed.notify()

    def close(self) -> None:
        """Remove a user; the last one ends the thread, once all is written."""
        self.users -= 1
        if not self.users:
            del _open[self.path]
            _closing[:] = [file for file in (*_closing, self) if file.lives]
            self.end()

    def end(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify()

    @property
    def lives(self) -> bool:
        return self._thread.is_alive()

    def join(self, patience: float) -> None:
        self._thread.join(patience)

    def _run(self) -> None:
        fd = -1
        try:
            fd = os.open(self.path, _FLAGS, 0o600)
        except OSError as error:
            self.failure = error
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.opened.set)
        while fd >= 0 and (part := self._next()):
            fd = self._renewed(fd)
            # one call per line, so that lines of several writers stay whole; on a full disk they
            # are lost: not a reason to end a container
            with contextlib.suppress(OSError):
                os.write(fd, part)
        if fd >= 0:
            os.close(fd)

    def _next(self) -> bytes:
        """Wait for the next line; b"" at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._lost or self._ends)
            if self._lost and not self._queue:
                text = f"{self._lost} messages were lost: {self.path} did not accept them in time"
                self._lost = 0
                return log_line("warning", text, time.time(), "text").encode() + b"\n"
            if not self._queue:
                return b""
            line = self._queue.popleft()
            self._room += len(line)
            return line

    def _renewed(self, fd: int) -> int:
        """Reopen the file if it was renamed, as logrotate does."""
        with contextlib.suppress(OSError):
            try:
                if os.path.samestat(os.fstat(fd), os.lstat(self.path)):
                    return fd
            except FileNotFoundError:
                pass
            new = os.open(self.path, _FLAGS, 0o600)
            os.close(fd)
            return new
        return fd


async def open_file(settings: Log) -> LogFile | None:
    """Return the file of the settings, if any, perhaps not open yet; the journal closes it."""
    path = settings.file
    if path is None:
        return None
    if path not in _open:
        _open[path] = LogFile(path)
    file = _open[path]
    file.users += 1
    try:
        with trio.move_on_after(_PATIENCE):
            await file.opened.wait()
        if file.failure is not None:
            reason = file.failure.strerror
            raise SettingsError(f"log.file: {path}: {reason}") from file.failure
    except BaseException:
        file.close()
        raise
    return file


def finish(patience: float) -> None:
    """Wait until all messages are written, before the process ends; without an event loop."""
    until = time.monotonic() + patience
    files = (*_closing, *_open.values())
    for file in files:
        file.end()
    for file in files:
        file.join(max(0, until - time.monotonic()))


LOST = ".lost"
"""The suffix of a file with the number of discarded bytes."""

_LEAST = 64 << 10


class LimitedFile:
    """A file that is only appended to, from time to time a new one, by `generation`."""

    def __init__(self, path: str, limit: int, *, again: bool = False) -> None:
        """Open it, to append; `again` counts what another process has written before."""
        self.path = path
        self.generation = 0
        self.lost = 0
        self._half = max(limit // 2, _LEAST)
        self._older = 0
        self._fd = os.open(path, _FLAGS, 0o600)
        self._rests = self._is_closed = False
        status = os.fstat(self._fd)
        self._size = status.st_size
        self._is_device = not stat.S_ISREG(status.st_mode)  # /dev/null has no limit
        if again:
            self._count_before()

    def _count_before(self) -> None:
        with contextlib.suppress(OSError):
            self._older = os.stat(self.path + ".1").st_size
            self.generation = 1
        with contextlib.suppress(OSError, ValueError), open(self.path + LOST, "rb") as file:
            self.lost = int(file.read())

    @property
    def begins(self) -> int:
        """The position of the newer file's first byte, counting discarded ones."""
        return self.lost + self._older

    @property
    def offset(self) -> int:
        """The position of the next byte, counting discarded ones."""
        return self.begins + self._size

    def write(self, data: bytes | bytearray) -> OSError | None:
        """Append, without waiting; return the error if something was lost for lack of space."""
        if self._is_closed:
            return None
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, _FLAGS, 0o600)
            except OSError as reason:
                self._count_lost(len(data))
                return reason
        error = self._append(data)
        if self._rests:
            self._let_go()
        return error

    def _append(self, data: bytes | bytearray) -> OSError | None:
        error = None
        if not self._is_device and self._size and self._size + len(data) > self._half:
            self._turn()
        for attempt in range(2):
            try:
                while data:
                    written = os.write(self._fd, data)
                    self._size += written
                    data = data[written:]
            except OSError as reason:
                error = reason
                if self._is_device:
                    return error
                if attempt == 0:
                    self._make_space()
        self._count_lost(len(data))
        return error

    def close(self) -> None:
        """Close it; later writes are dropped."""
        self._is_closed = True
        self._let_go()

    def rest(self) -> None:
        """Have no descriptor from now on, except while something is written."""
        self._rests = True
        self._let_go()

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _turn(self) -> None:
        try:
            os.rename(self.path, self.path + ".1")
            fd = os.open(self.path, _FLAGS, 0o600)
        except OSError:  # out of descriptors, or somebody has removed the directory
            return
        os.close(self._fd)
        self._fd = fd
        self.generation += 1
        lost, self._older, self._size = self._older, self._size, 0
        self._count_lost(lost)

    def _make_space(self) -> None:
        self._half = max(min(self._half, self._size + self._older) // 2, _LEAST)
        lost, self._older = self._older, 0
        with contextlib.suppress(OSError):
            os.unlink(self.path + ".1")
        if not lost:
            lost, self._size = self._size, 0
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
        self._count_lost(lost)

    def _count_lost(self, count: int) -> None:
        if count:
            self.lost += count
            with contextlib.suppress(OSError):
                fd = os.open(self.path + LOST, _FLAGS & ~os.O_APPEND | os.O_TRUNC, 0o600)
                try:
                    os.write(fd, b"%d" % self.lost)
                finally:
                    os.close(fd)
