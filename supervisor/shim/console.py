"""A container's or an exec's standard streams: pipes, or a terminal from the runtime."""

import _socket as socket  # without its enums, which take some ms
import errno
import fcntl
import os
import struct

from scrun.supervisor.wire.frames import END

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .streams import InputStream, OutputStream, ShimStreams

_PIPE = 1 << 18  # many larger ones would use up what a user may have
_F_SETPIPE_SZ = 1031
_WORDS = 1 << 16


class ProgramStdio:
    """The standard streams of a container or of an exec.

    Attributes:
        size: The last rows and columns of the terminal, or 0.
        device: The terminal that was made here.
        child: The descriptors that the runtime gets as 0 to 2; closed by `begun` and `abandon`.
    """

    def __init__(
        self,
        streams: "ShimStreams",
        wanted: "Mapping[str, int]",
        place: str,
        makes_terminal: bool = False,
    ) -> None:
        """Make the pipes, or the socket for the terminal.

        Args:
            place: The directory of the container or exec; not a working directory.
            makes_terminal: Whether a terminal is made here, and not by the runtime.

        Raises:
            OSError: No descriptor is left.
            ValueError: A stream exists already.
        """
        self._streams = streams
        self.terminal = "terminal" in wanted
        self.child: list[int | None] = [None, None, None]
        self._sources: list[OutputStream] = []
        self._sinks: list[InputStream] = []
        self._words = self._master = self._input = -1
        self._socket: socket.socket | None = None
        self._number = wanted.get("terminal", 0)
        names = ("stdout", "stderr", "terminal")
        self._outputs = [wanted[name] for name in names if name in wanted]
        self.size = (int(wanted.get("rows", 0)), int(wanted.get("columns", 0)))
        self.device = (0, 0)
        try:
            if self.terminal and makes_terminal:
                self._make_terminal()
            elif self.terminal:
                self._listen(place)
            else:
                self._make_pipes(wanted)
        except BaseException:
            self.abandon()
            raise

    def _listen(self, place: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._socket.bind(f"/proc/self/fd/{folder}/console")
        finally:
            os.close(folder)
        self._socket.listen(1)
        self._socket.setblocking(False)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        words = os.open(os.path.join(place, "words"), flags, 0o600)
        self.child[1:] = [words, words]
        self._words = os.dup(words)
        self._sinks.append(self._streams.sink(self._number, -1))

    def _make_terminal(self) -> None:
        try:
            self._master, there = os.openpty()
        except OSError as error:  # as in scrun.core.terminal
            raise OSError(error.errno, error.strerror, "/dev/ptmx") from None
        self.child = [there, there, there]
        self.device = device(there)
        self._sinks.append(self._streams.sink(self._number, -1))
        self._carry_terminal()

    def _make_pipes(self, wanted: "Mapping[str, int]") -> None:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if name not in wanted:
                continue
            here, there = os.pipe()
            if number == 0:
                here, there = there, here
            self.child[number] = there
            if number < 2:
                _enlarge(here)
            try:
                if number == 0:
                    self._sinks.append(self._streams.sink(wanted[name], here))
                    continue
                self._sources.append(self._streams.source(wanted[name], here))
            except ValueError:
                os.close(here)
                raise
            if number == 2:
                self._words = os.dup(here)

    def close_child(self) -> None:
        """Close the runtime's ends: it has them."""
        for fd in {fd for fd in self.child if fd is not None}:
            os.close(fd)
        self.child = [None, None, None]

    def receive(self) -> None:
        """Receive the terminal, which a runtime that succeeded has sent (runc's terminals.md).

        Raises:
            OSError: It has not.
        """
        if self._socket is None:
            return
        fd, _ = self._socket._accept()  # type: ignore[attr-defined]
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        try:
            connection.setblocking(False)
            space = socket.CMSG_LEN(struct.calcsize("i"))  # CMSG_SPACE has room for a second one
            _, ancillary, _, _ = connection.recvmsg(4096, space, socket.MSG_CMSG_CLOEXEC)
        finally:
            connection.close()
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                (self._master,) = struct.unpack_from("i", data)
                os.set_inheritable(self._master, False)
        if self._master < 0:
            raise OSError(errno.EPROTO, "the runtime sent no terminal")
        self._carry_terminal()

    def _carry_terminal(self) -> None:
        self._input = os.dup(self._master)
        source = self._streams.source(self._number, os.dup(self._master), terminal=True)
        self._sources.append(source)
        self.resize(*self.size)

    def begin(self) -> None:
        """Carry bytes: the runtime has succeeded, and all further bytes are the program's."""
        self._end_setup()
        if self._input >= 0:
            self._sinks[0].open(self._input)
            self._input = -1
        for source in self._sources:
            source.begin()

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal a size, now or when it comes; 0 leaves it as it is."""
        self.size = (rows, columns)
        if self._master >= 0:
            set_size(self._master, rows, columns)

    def words(self) -> bytes:
        """Return what a runtime that failed wrote to its standard error."""
        try:
            if self._words < 0:  # a terminal of ours has them, and blocks nobody
                return os.read(self._master, _WORDS) if self._master >= 0 else b""
            if self.terminal:
                os.lseek(self._words, 0, os.SEEK_SET)
            return os.read(self._words, _WORDS)
        except OSError:
            return b""

    def fail(self) -> None:
        """End the outputs without a byte: there will be no program."""
        told = [source.number for source in self._sources if source.is_over]
        self.abandon()
        for number in self._outputs:
            if number not in told:
                self._streams.link.send(END, number)

    def abandon(self) -> None:
        """Close everything without a word: the program is not there, or nobody wants it."""
        self.close_child()
        self._end_setup()
        for end in self._sources + self._sinks:
            end.close()
        self.release()

    def let_go(self) -> None:
        """Keep nothing that was sent: the container or exec is forgotten."""
        for source in self._sources:
            source.let_go()

    def release(self) -> None:
        """Close the terminal; what its programs wrote is still carried."""
        for fd in (self._master, self._input):
            if fd >= 0:
                os.close(fd)
        self._master = self._input = -1

    def _end_setup(self) -> None:
        if self._words >= 0:
            os.close(self._words)
            self._words = -1
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def device(fd: int) -> "tuple[int, int]":
    """Return what tells terminals apart: each mount of devpts counts its own."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def set_size(terminal: int, rows: int, columns: int) -> None:
    """Give a terminal a size, if it is one."""
    if rows > 0 and columns > 0:
        import termios

        size = struct.pack("HHHH", min(rows, 0xFFFF), min(columns, 0xFFFF), 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def _enlarge(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE)
    except OSError:  # the user has many already
        pass
