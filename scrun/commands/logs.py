"""scrun logs: print what a container that `run --detach` started has written.

With `--messages`: what scrun and Slurm have said about it, of any container. With `--supervisor`:
the log of the supervisors of the root directory, for reports of faults.

Wire, for `--follow` only: `follow ID KIND`, KIND "output" or "messages"; the answer is one byte 0
and then the text, as it comes, until the container ends.

Errors: the container's output is not kept by scrun.
"""

import _socket
import errno
import os
import stat

from scrun import wire
from scrun._fast import record_root, say, write
from scrun.cli.parse import Parsed
from scrun.commands.ask import meant
from scrun.errors import StateError, UnknownContainer, UsageError
from scrun.paths import OWN_LOG
from scrun.record import OUTPUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE = 65536
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Print it.

    Raises:
        UnknownContainer: There is no such container.
        StateError: Its output is not here.
        UsageError: No container is named.
        OSError: The file cannot be read.
    """
    del argv
    root = record_root(parsed)
    if parsed.count("supervisor"):
        return _print_own_log(root, parsed)
    if not parsed.id:
        raise UsageError("logs needs a container-id, or --supervisor: see 'scrun logs --help'")
    container = meant(parsed, root)
    directory = os.path.join(root, container)
    kind = "messages" if parsed.count("messages") else "output"
    try:
        # by its descriptor: who owns the root directory may exchange what has the name meanwhile
        record = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise UnknownContainer(f"container {container} does not exist") from None
    try:
        name = "log" if kind == "messages" else OUTPUT
        files, lost = _open_both(name, record), _lost(name, record)
    except FileNotFoundError:
        raise StateError(
            f"container {container}: its output is not kept here: it goes where `scrun run` was "
            "redirected to, or to the engine that created it (podman logs, docker logs, ...); "
            "`scrun logs --messages` has what scrun says"
        ) from None
    tail = _lines(parsed.text("tail"))
    # another user's may be written for this terminal
    show = say if kind == "messages" or os.fstat(files[-1]).st_uid != os.geteuid() else write
    if parsed.count("follow"):
        try:
            sock = wire.connect_supervisor(directory, "supervisor")
        except wire.NOBODY:
            pass  # then it does not grow any more
        else:
            fields = [b"follow", os.fsencode(container), kind.encode()]
            there = sum(os.fstat(file).st_size for file in files) if tail is not None else 0
            if tail is not None:
                _print_end(files, there, tail, show)
            return _follow(sock, fields, parsed, show, there)
    if tail is not None:
        _print_end(files, sum(os.fstat(file).st_size for file in files), tail, show)
        return 0
    for file in files:
        _print(file, show)
    if lost:
        text = f"scrun: the first {lost} bytes are gone: see `limit` in [log] of scrun.toml(5)\n"
        try:
            os.write(2, text.encode())
        except OSError:
            pass
    return 0


def _lost(name: str, directory: int) -> int:
    """Return how many bytes a limit, or a full disk, has taken from the beginning."""
    try:
        with open(_open(name + ".lost", directory), "rb") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return 0


def _print_own_log(root: str, parsed: Parsed) -> int:
    """Print what supervisors have logged, the older file first; nothing, if that is all well."""
    if parsed.id or parsed.count("follow") or parsed.count("messages"):
        raise UsageError("logs --supervisor takes no container and no other option")
    try:
        for file in _open_both(os.path.join(root, OWN_LOG)):
            _print(file, say)
    except FileNotFoundError:
        pass
    return 0


def _open_both(name: str, directory: "int | None" = None) -> "list[int]":
    """Open a file that is limited: it may have an older half (see `supervisor.limited`).

    Returns:
        Descriptors, the older one first.

    Raises:
        OSError: It cannot be read.
    """
    files = [_open(name, directory)]
    try:
        files.insert(0, _open(name + ".1", directory))
    except FileNotFoundError:
        return files
    if os.path.samestat(os.fstat(files[0]), os.fstat(files[1])):
        os.close(files.pop())  # it has become the older one at this moment
    return files


def _open(name: str, directory: "int | None" = None) -> int:
    """Open a regular file, and nothing that a link leads to.

    Raises:
        OSError: It cannot be read.
    """
    file = os.open(name, _FLAGS, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", name)
    return file


def _print(fd: int, show: "Callable[[bytes], None]") -> None:
    with open(fd, "rb") as file:
        for line in file if show is say else iter(lambda: file.read(_PIECE), b""):
            show(line)


def _lines(text: "str | None") -> "int | None":
    if text is None or text == "all":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"--tail {text}: is not a number of lines")
    return int(text)


def _print_end(
    files: "list[int]", there: int, lines: int, show: "Callable[[bytes], None]"
) -> None:
    """Print the last lines of the first `there` bytes of files that go on in each other."""
    pieces: list[bytes] = []
    newlines, end = 0, there
    sizes = [os.fstat(file).st_size for file in files]
    while lines and end > 0 and newlines <= lines:
        begin = max(end - _PIECE, 0)
        piece, place = b"", 0
        for file, size in zip(files, sizes, strict=True):
            low, high = max(begin - place, 0), min(end - place, size)
            piece += os.pread(file, high - low, low) if low < high else b""
            place += size
        pieces.insert(0, piece)
        newlines += piece.count(b"\n")
        end = begin
    show(b"".join(b"".join(pieces).splitlines(keepends=True)[-lines:]) if lines else b"")


def _follow(
    sock: _socket.socket,
    fields: "list[bytes]",
    parsed: Parsed,
    show: "Callable[[bytes], None]",
    shown: int,
) -> int:
    """Show what comes, but for so many bytes that are shown already."""
    wire.send(sock, fields)
    status = sock.recv(1) or b"\1"
    if status != b"\0":
        from scrun.commands.failure import report_failure

        return report_failure(wire.answer(sock, status)[1:], status[0], parsed)
    wire.wait_for_ever(sock)
    while piece := sock.recv(_PIECE):
        show(piece[shown:])
        shown = max(shown - len(piece), 0)
    return 0
