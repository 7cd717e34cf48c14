"""What `create`, `run` and `exec` send: a request, descriptors, an end of an anchor's socket."""

import _socket
import posix

from scrun.anchor.foreground import CarriedTerminal
from scrun.anchor.pid_file import PidFile
from scrun.anchor.shell import AnchorProcess
from scrun.cli.parse import Parsed
from scrun.core.errors import UsageError
from scrun.core.rights import MOST, send_fds
from scrun.protocol import wire

_TAKING = 10
"""Seconds in which the engine has to accept the connection to its console socket."""


class Console:
    """A terminal for the engine (runtime-spec, runc's terminals.md): `stdio` is its slave."""

    def __init__(self, socket: str) -> None:
        """Open a terminal for a `--console-socket`; refuse what is another user's."""
        from scrun.core.terminal import openpty

        self._socket = socket
        try:
            status = posix.stat(socket)
            if status.st_mode & 0o170000 != 0o140000:
                raise OSError(22, "is not a socket")
            if status.st_uid not in (0, posix.geteuid()):
                raise PermissionError(1, f"belongs to another user (uid {status.st_uid})")
        except OSError as error:
            raise self._named(error) from None
        self._master, slave = openpty()
        self.stdio = [slave, slave, slave]
        self.path = posix.ttyname(slave)

    def hand_over(self) -> None:
        directory, slash, name = self._socket.rpartition("/")
        try:
            sock = wire.connect(directory + slash or ".", name, patience=_TAKING)
            try:
                if wire.peer_uid(sock) != 0:  # root may get everybody's terminal
                    wire.check_peer(sock)
                send_fds(sock, self.path.encode(), [self._master])
            finally:
                sock.close()
        except OSError as error:
            raise self._named(error) from None
        posix.close(self._master)

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, f"--console-socket {self._socket}")


class Anchored:
    """The pid file, terminal and anchor of one command; a context manager.

    Attributes:
        anchor: The anchor that is left behind; None if this process is the anchor.
        socket: The anchor's end of its socket, for an anchor that is this process.
        fds: Standard input, output and error, the supervisor's end of that socket, and the
            descriptors of `--preserve-fds`.
    """

    anchor: "AnchorProcess | None"
    console: "Console | None"
    pid_file: "PidFile | None"

    def __init__(self, parsed: Parsed) -> None:
        self._container = parsed.id or ""
        self._preserved = preserved(parsed)  # before we open anything
        self._socket_path = parsed.text("console-socket")
        self.pid_file = None
        if path := parsed.text("pid-file"):
            self.pid_file = PidFile(path)

    def __enter__(self) -> "Anchored":  # noqa: PYI034 - typing is not imported here
        return self

    def __exit__(self, *error: object) -> None:
        if self.pid_file:
            self.pid_file.discard()

    def begin(self, carried: "CarriedTerminal | None" = None, *, leave: bool) -> None:
        self.console = None
        stdio = [carried.slave] * 3 if carried else [0, 1, 2]
        if self._socket_path:
            self.console = Console(self._socket_path)
            stdio = self.console.stdio
        self._supervisor_end, self.socket = _socket.socketpair()
        self.fds = [*stdio, self._supervisor_end.fileno(), *self._preserved]
        self.anchor = None
        if leave:
            lock = self.pid_file.lock if self.pid_file else None
            terminal = self.console.path if self.console else None
            self.anchor = AnchorProcess(self._container, self.socket.detach(), lock, terminal)

    def name(self) -> int:
        """Return the anchor's pid, and write it to the pid file."""
        if self.pid_file:
            self.pid_file.name_anchor(self.pid, self.anchor)
        return self.pid

    @property
    def pid(self) -> int:
        return self.anchor.pid if self.anchor else posix.getpid()

    def sent(self) -> None:
        self._supervisor_end.close()


def preserved(parsed: Parsed) -> "list[int]":
    """Return the descriptors of `--preserve-fds`, the caller's own; UsageError if one is not open.

    A runtime would mistake that for its own descriptors, of this machine's files.
    """
    text = parsed.text("preserve-fds")
    if text is None:
        return []
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--preserve-fds {text!r}: a number of descriptors expected")
    most = MOST - 5
    if len(text) > len(str(most)) or int(text) > most:
        raise UsageError(f"--preserve-fds {text}: no more than {most} are possible")
    fds = list(range(3, 3 + int(text)))
    for fd in fds:
        try:
            is_callers = posix.get_inheritable(fd)
        except OSError:
            is_callers = False
        if not is_callers:
            raise UsageError(f"--preserve-fds {text}: descriptor {fd} is not open")
    return fds


def build_call(operation: str, pid: int, argv: "list[str]") -> "list[bytes]":
    """Build a request with a command line, umask and working directory (`protocol.wire`)."""
    posix.umask(umask := posix.umask(0o077))
    fields = [operation.encode(), b"%d" % pid, b"%o" % umask, posix.getcwdb()]
    fields += [b"%d" % len(argv)]
    fields += [wire.encoded(argument) for argument in argv]
    if operation in ("create", "pool"):
        fields += [name + b"=" + value for name, value in posix.environ.items()]
    return fields
