"""Watches a container: its supervisor sends frames, and after that its successor the rest.

`scrun.protocol.attach` describes them.
"""

import _socket
import errno
import os
import stat
import time
from collections.abc import Iterator

from scrun.client.reach import explain_unserved, wait_for_successor
from scrun.model.record import exit_status, read_record
from scrun.protocol import wire
from scrun.protocol.attach import DATA, POSITION, take_frames

_PIECE = 65536
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PATIENCE = 60.0
_PAUSE = 0.05


class Watch:
    """A request for frames, from a `position` in the text or from now on."""

    sock: _socket.socket

    def __init__(
        self,
        directory: str,
        name: str,
        fields: list[bytes],
        position: int | None = None,
        fds: list[int] | None = None,
    ) -> None:
        # `name` is that of the file in the record that has the text; `fds` go with the request
        self.position = position
        self._directory, self._name = directory, name
        self._fields = fields
        self._fds = fds
        self._rest = b""

    def begin(self, sock: _socket.socket) -> bytes:
        self.sock, self._rest = sock, b""
        digits = b"" if self.position is None else b"%d" % self.position
        try:
            wire.send(sock, [*self._fields, digits], self._fds)
            return sock.recv(1)
        except ConnectionError:
            return b""

    def first(self, sock: _socket.socket) -> bytes:
        """Do the same as `begin`, or as `again` if that supervisor dies before it answers."""
        return self.begin(sock) or self.again()

    def again(self) -> bytes:
        """Do the same with the successor of a supervisor that has gone, if there is one."""
        begun = time.monotonic()
        while time.monotonic() - begun < _PATIENCE:
            self.sock.close()
            try:
                sock = wait_for_successor(self._directory)
            except OSError:
                return b""
            if sock is None:
                return b""
            if answer := self.begin(sock):
                return answer
            time.sleep(_PAUSE)  # it was killed as well, or is about to exit
        return b""

    def frames(self) -> list[tuple[bytes, bytes]] | None:
        """Receive some, by kind and content; None if the supervisor has gone."""
        try:
            part = self.sock.recv(_PIECE)
        except ConnectionError:
            part = b""
        if not part or len(self._rest) > wire.REPLY:
            return None
        frames, self._rest = take_frames(self._rest + part)
        for kind, content in frames:
            if kind == POSITION:
                self.position = int.from_bytes(content, "big")
            elif kind == DATA and self.position is not None:
                self.position += len(content)
        return frames

    def rest(self) -> Iterator[bytes]:
        """Yield the rest of the text from its files: it does not grow any more."""
        try:
            record = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # it was deleted
            return
        try:
            lost, files = lost_bytes(self._name, record), open_both(self._name, record)
        except OSError:
            return
        finally:
            os.close(record)
        begin = max((self.position or 0) - lost, 0)
        for fd in files:
            with open(fd, "rb") as file:
                size = os.fstat(fd).st_size
                file.seek(min(begin, size))
                begin = max(begin - size, 0)
                while piece := file.read(_PIECE):
                    yield piece

    def status(self) -> int | None:
        """Return how the container ended, if that is known; StateError if it was lost."""
        unserved = explain_unserved(self._directory)
        try:
            annotations = read_record(self._directory).annotations
        except OSError:
            return None
        if "org.scrun.reason" not in annotations:
            raise unserved
        return exit_status(annotations)


def open_both(name: str, directory: int | None = None) -> list[int]:
    """Open a file of limited size, and first its older half, if any (`supervisor.log.files`)."""
    files = [_open(name, directory)]
    try:
        files.insert(0, _open(name + ".1", directory))
    except FileNotFoundError:
        return files
    if os.path.samestat(os.fstat(files[0]), os.fstat(files[1])):
        os.close(files.pop())  # it was renamed to the older one just now
    return files


def lost_bytes(name: str, directory: int) -> int:
    """Return how many bytes are missing at the beginning, because of a limit or a full disk."""
    try:
        with open(_open(name + ".lost", directory), "rb") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return 0


def _open(name: str, directory: int | None = None) -> int:
    """Open a regular file; follow no link."""
    file = os.open(name, _FLAGS, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", name)
    return file
