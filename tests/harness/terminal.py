"""The other end of a container's terminal."""

import fcntl
import os
import socket
import struct
import termios
import time
from pathlib import Path

from scrun.core.ready import ready


class Terminal:
    """The master of a pty."""

    def __init__(self, master: int) -> None:
        self.master = master
        self.seen = b""

    def read_until(self, text: str, timeout: float = 20) -> str:
        """Read up to a text, and return what came with it; what follows is kept."""
        wanted = text.encode()
        deadline = time.monotonic() + timeout
        while wanted not in self.seen:
            if not self._more(deadline):
                raise AssertionError(f"end of terminal before {text!r}: {self.seen!r}")
        head, _, self.seen = self.seen.partition(wanted)
        return (head + wanted).decode(errors="replace")

    def read_all(self, timeout: float = 20) -> str:
        """Read to the end, which a pty tells by an error."""
        deadline = time.monotonic() + timeout
        while self._more(deadline):
            pass
        return self.seen.decode(errors="replace")

    def _more(self, deadline: float) -> bool:
        if not ready([self.master], seconds=max(0, deadline - time.monotonic()))[0]:
            raise AssertionError(f"nothing more on the terminal: {self.seen!r}")
        try:
            data = os.read(self.master, 65536)
        except OSError:  # EIO: nobody holds the other side
            return False
        self.seen += data
        return bool(data)

    def pass_over(self, seconds: float) -> None:
        """Read for some time, or to the end, and forget it."""
        deadline = time.monotonic() + seconds
        while ready([self.master], seconds=max(0, deadline - time.monotonic()))[0]:
            try:
                if not os.read(self.master, 65536):
                    break
            except OSError:  # EIO: nobody holds the other side
                break
        self.seen = b""

    def write(self, text: str) -> None:
        os.write(self.master, text.encode())

    def says_got(self, timeout: float = 20) -> None:
        """Type "something" for a program that answers `got` and what it has read."""
        self.write("something\n")
        self.read_until("got something", timeout)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            self.master = -1


def open_terminal(rows: int = 43, columns: int = 143) -> tuple[Terminal, int]:
    """Open a pty of a size; return its master, and the other side's descriptor."""
    master, slave = os.openpty()
    terminal = Terminal(master)
    terminal.resize(rows, columns)
    return terminal, slave


class ConsoleSocket:
    """The socket of `--console-socket`: receives one terminal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o666)
        self._socket.listen(1)

    def receive(self, timeout: float = 20) -> Terminal:
        """Wait for the message: exactly one descriptor."""
        self._socket.settimeout(timeout)
        connection, _ = self._socket.accept()
        with connection:
            connection.settimeout(timeout)
            _, fds, _, _ = socket.recv_fds(connection, 4096, 4)
        assert len(fds) == 1, f"{len(fds)} descriptors in the console message"
        return Terminal(fds[0])

    def close(self) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)
