"""Log files on any file system, which may hang: the `[log] file`.

Each has a thread that opens and writes it, and a bounded queue; nobody waits for either. Messages
that do not fit are dropped and counted; the count is logged once the file accepts writes again.
"""

import contextlib
import os
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
    """One file, for all containers that write to it.

    Attributes:
        users: The number of containers.
        opened: Set when it is open, or could not be opened.
        failure: Why it could not be opened.
    """

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
        """Queue a line, if there is room for it."""
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
        """End the thread once all is written."""
        with self._changed:
            self._ends = True
            self._changed.notify()

    @property
    def lives(self) -> bool:
        """Whether the thread may still write."""
        return self._thread.is_alive()

    def join(self, patience: float) -> None:
        """Wait up to `patience` seconds until all is written."""
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
    """Return the file of the settings, if they name one; the journal closes it.

    It may not be open yet: if its file system hangs, messages may be lost.

    Raises:
        SettingsError: It cannot be opened.
    """
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
