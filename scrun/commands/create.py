"""scrun create: ask for a job, make the bundle ready there, and leave an anchor behind.

Wire: `create PID UMASK CWD COUNT ARGUMENT... NAME=VALUE...` with four descriptors: the
container's standard input, output and error, and the supervisor's end of the anchor's socket.
PID is that of this process; the anchor's follows in a line of its own.
The answer comes when the container is *created*: allocated and staged. Messages may come before
it (`scrun.protocol.progress`). It is confirmed by one more byte: a `create` that is killed before
it has made the pid file leaves no container behind that nobody knows.

Errors: whatever can be known without a job is refused before one is asked for; then there is no
container, no anchor and no pid file.

The making of the anchor begins before the supervisor is asked, and goes on beside that: its pid
follows the request, and no job is asked for before. When this process is killed half-way the
supervisor sees the connection close, ends what it began, and the anchor with it.
"""

import _socket
import os

from scrun.anchor import shell
from scrun.anchor.pid_file import PidFile
from scrun.cli.parse import Parsed
from scrun.client.ask import ask, record_root, setting
from scrun.core.version import VERSION
from scrun.oci.ids import check_id
from scrun.protocol import wire

OWN = "@pod-"
"""How the names of supervisors begin that serve one pod, or one container."""

_TAKING = 10
"""Seconds that whoever listens at the console socket may take."""

_CALL, _TOLD = b"\xfc", b"\xfb"
"""Those of `scrun.protocol.progress`, not imported yet; the second is the least of them all."""


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Create a container.

    Args:
        parsed: The parsed command line.
        argv: The same as it came; the supervisor reads it again, with the same table.

    Raises:
        ScrunError: In words for the caller; the container does not exist then.
        OSError: The pid file, the console socket or the root directory is at fault.
    """
    check_id(parsed.id or "")
    open_closed_descriptors()
    pid_file = PidFile(path) if (path := _text(parsed, "pid-file")) else None
    try:
        console = Console(path) if (path := _text(parsed, "console-socket")) else None
        ours, theirs = _socket.socketpair()
        lock = pid_file.lock if pid_file else None
        left = shell.Left(theirs.detach(), lock, console.path if console else None)
        stdio = console.stdio if console else [0, 1, 2]
        fds = [*stdio, ours.fileno()]
        status, answer, told = submit(parsed, argv, left, fds, pid_file, console)
    finally:
        if pid_file:
            pid_file.discard()
    if status:
        from scrun.cli.failure import report_failure

        return report_failure(answer, status, parsed, told=told)
    return 0


def delete(directory: str) -> None:
    """Have a container deleted; what cannot be is told by the next `list`.

    Args:
        directory: Its record.
    """
    try:
        ask(directory, "supervisor", [b"delete", os.fsencode(os.path.basename(directory)), b"1"])
    except OSError:
        pass


def submit(
    parsed: Parsed,
    argv: "list[str]",
    left: "shell.Left | None",
    fds: "list[int]",
    pid_file: "PidFile | None",
    console: "Console | None",
) -> "tuple[int, bytes, bool]":
    """Have a container created, by a supervisor that is started if need be.

    Args:
        parsed: The parsed command line, of `create` or `run`.
        argv: The same as it came.
        left: The anchor; None: it is this process itself.
        fds: Standard input, output and error, and the supervisor's end of the anchor's socket.
        pid_file: What gets its name when the container is created; without that it is ended again.
        console: The container's terminal, likewise.

    Returns:
        The exit status, the reason if it is not 0, and whether standard error has that already.

    Raises:
        ScrunError: There is no supervisor.
        OSError: There is no anchor, the pid file cannot have its name, or nobody takes the
            terminal.
    """
    root = record_root(parsed)
    name, lingers = _whom_to_ask(root, parsed)
    fields = request("create", os.getpid(), argv)
    return _ask(root, name, parsed, fields, left, fds, pid_file, console, lingers=lingers)


def _whom_to_ask(root: str, parsed: Parsed) -> "tuple[str, bool]":
    """Choose a supervisor, and tell whether it stays for a while when it has nothing to do.

    Some engines wait for whatever is started below them (`is_waited_for`). A supervisor of all
    containers there would keep them, and podman from cleaning up, as long as it has anything to
    do. Therefore such a supervisor serves this one container, or pod, and goes with it; `start`,
    which podman calls itself, has the common one started meanwhile for those that follow.
    """
    group = setting(parsed, "group") or "user"
    name = supervisor_name(group, parsed)
    if group != "user":
        return name, True
    if not os.path.lexists(f"{root}/{name}"):
        from scrun.client.launch import is_waited_for

        if is_waited_for():
            return supervisor_name("pod", parsed), False
        return name, True
    if any(entry.startswith(OWN) for entry in os.listdir(root)):
        own = supervisor_name("pod", parsed)
        if os.path.lexists(f"{root}/{own}"):  # one of its pod's, with the pod's job
            return own, False
    return name, True


def supervisor_name(group: str, parsed: Parsed) -> str:
    """Name the socket of the supervisor that serves a new container.

    A supervisor works in its own namespaces and speaks its own version's protocol: these are
    part of the name, and so is what the setting `group` keeps apart. `@` cannot begin a
    container's id.
    """
    namespaces = "-".join(
        str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in ("user", "mnt", "pid")
    )
    key = ""
    if group == "container":
        key = parsed.id or ""
    elif group == "pod":
        from scrun.core.pods import pod_of

        key = pod_of(_text(parsed, "bundle") or ".", _text(parsed, "config")) or parsed.id or ""
    return f"@{group}{_digest(key)}-{namespaces}-{VERSION}"


def _digest(key: str) -> str:
    """Shorten a key: a pod's or container's name may fill a whole file name by itself."""
    if not key:
        return ""
    from _blake2 import blake2s

    return "-" + blake2s(key.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _ask(
    root: str,
    name: str,
    parsed: Parsed,
    fields: "list[bytes]",
    left: "shell.Left | None",
    fds: "list[int]",
    pid_file: "PidFile | None",
    console: "Console | None",
    *,
    lingers: bool,
) -> "tuple[int, bytes, bool]":
    """Ask the supervisor, and start it when there is none.

    A supervisor that closes the connection without a word was on its way out (it checks for
    requests before it goes, but cannot see one that is still on its way): the next try starts
    another one.
    """
    for attempt in range(3):
        try:
            sock = wire.connect_supervisor(root, name)
        except OSError:
            from scrun.client.launch import launch

            file = parsed.text("config-file") or ""
            sock = launch(root, name, settings_file=file, lingers=lingers)
        try:
            if (owner := wire.served_by(sock)) != os.geteuid():
                # root may ask about everybody's containers, but hands its environment to nobody
                from scrun.core.errors import SettingsError

                raise SettingsError.of_root(root, f"belongs to uid {owner}")
            wire.send(sock, fields, fds)
            _name_anchor(sock, left, pid_file)
            status, answer, told = _hear(sock, parsed, pid_file.lock if pid_file else None)
            if status == 0:
                if answer:  # the container's first process, and no anchor
                    if pid_file:
                        pid_file.names_instead(int(answer))
                elif console:
                    console.hand_over()
                if pid_file:
                    pid_file.publish()
                wire.confirm(sock)
            return status, answer, told
        except (BrokenPipeError, ConnectionResetError):
            if attempt == 2 or os.path.lexists(f"{root}/{parsed.id}"):
                from scrun.core.errors import SupervisorLost

                raise SupervisorLost(
                    f"the supervisor died while it created container {parsed.id}; "
                    "delete it and create it again"
                ) from None
        finally:
            sock.close()
    raise AssertionError("unreachable")


def _name_anchor(
    sock: _socket.socket, left: "shell.Left | None", pid_file: "PidFile | None"
) -> None:
    """Tell the supervisor, and the pid file, which process the anchor is.

    Raises:
        OSError: There is none, or the pid file's file system is full.
    """
    pid = left.pid if left else os.getpid()
    if pid_file:
        pid_file.names(pid, left)
    try:
        sock.send(b"%d\n" % pid)
    except BrokenPipeError:
        pass  # it has refused the request: `_hear` has why, or says that it is gone


def _hear(
    sock: _socket.socket, parsed: Parsed, lock: "int | None" = None
) -> "tuple[int, bytes, bool]":
    """Read the reply, show the messages that come before it, and do what they ask for.

    Args:
        sock: The connection to the supervisor.
        parsed: The command line.
        lock: What holds the pid file's lock, for the container's life.

    Returns:
        The exit status and the answer; and whether standard error has the reason already, from
        the runtime that was called.

    Raises:
        ConnectionError: The supervisor went away without an answer.
    """
    data = b""
    shown = told = False
    while part := sock.recv(65536):
        data += part
        while data[:1] >= _TOLD and b"\0" in data:
            if data[:1] == _TOLD:
                told, data = True, data[2:]
                continue
            if data[:1] == _CALL:
                from scrun.client.call import call

                ended, data = call(sock, data, lock)
                told = ended > 0
                continue
            from scrun.protocol.progress import show

            message, _, data = data.partition(b"\0")
            show(message, parsed)
            shown = True
    if shown:
        from scrun.protocol.progress import clear

        clear()
    if not data or data[:1] >= _TOLD:
        raise ConnectionResetError("the supervisor closed the connection")
    return data[0], data[1:], told


def request(operation: str, pid: int, argv: "list[str]") -> "list[bytes]":
    """Build a request that carries a command line, and where it was typed (`protocol.wire`)."""
    os.umask(umask := os.umask(0o077))
    fields = [operation.encode(), b"%d" % pid, b"%o" % umask, os.fsencode(os.getcwd())]
    fields += [b"%d" % len(argv)]
    fields += [os.fsencode(argument) for argument in argv]
    if operation == "create":
        fields += [name + b"=" + value for name, value in os.environb.items()]
    return fields


def open_closed_descriptors() -> None:
    """Put /dev/null where standard input, output or error were closed.

    Else the next file that is opened takes that number, and a socket of ours would be handed to
    the container as its standard input.
    """
    while (fd := os.open("/dev/null", os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


class Console:
    """A terminal that is to be handed to the engine (runtime-spec, runc's terminals.md).

    Attributes:
        stdio: Its slave as standard input, output and error.
        path: The slave's path.
    """

    __slots__ = ("_master", "_socket", "path", "stdio")

    def __init__(self, socket: str) -> None:
        """Make it.

        Args:
            socket: What `--console-socket` says.

        Raises:
            OSError: It is no socket, or another user's.
        """
        self._socket = socket
        try:
            status = os.stat(socket)
            if status.st_mode & 0o170000 != 0o140000:
                raise OSError(22, "is not a socket")
            if status.st_uid not in (0, os.geteuid()):
                raise PermissionError(1, f"belongs to another user (uid {status.st_uid})")
        except OSError as error:
            raise self._named(error) from None
        self._master, slave = os.openpty()
        self.stdio = [slave, slave, slave]
        self.path = os.ttyname(slave)

    def hand_over(self) -> None:
        """Send the master to the engine, which is the only one that has it then.

        Raises:
            OSError: Nobody takes it, or another user would.
        """
        directory, name = os.path.split(self._socket)
        try:
            sock = wire.connect(directory or ".", name, patience=_TAKING)
            try:
                if wire.served_by(sock) != 0:  # root may take everybody's
                    wire.check_server(sock)
                rights = self._master.to_bytes(4, "little")
                ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)]
                sock.sendmsg([self.path.encode()], ancillary)
            finally:
                sock.close()
        except OSError as error:
            raise self._named(error) from None
        os.close(self._master)

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, f"--console-socket {self._socket}")


def _text(parsed: Parsed, option: str) -> "str | None":
    value = parsed.options.get(option)
    return value if isinstance(value, str) else None
