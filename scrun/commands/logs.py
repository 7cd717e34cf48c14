"""scrun logs: print the output of a container that `run --detach` started.

With `--messages`: the messages of scrun and Slurm about any container. With `--supervisor`: the
log of the root directory's supervisors, for bug reports.

Wire, for `--follow` only: `follow ID KIND POSITION`, KIND "output" or "messages"; the answer has
the text from that byte on, as it is written, until the container ends, in frames
(`scrun.protocol.attach`). If the supervisor dies, its successor is asked for the rest.
"""

import _socket
import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable

from scrun.cli.failure import report_failure
from scrun.cli.parse import Parsed, record_root
from scrun.client.find import resolve
from scrun.client.reach import wait_for_successor
from scrun.client.watch import Watch, lost_bytes, open_both
from scrun.core.errors import StateError, UnknownContainer, UsageError
from scrun.core.output import is_read, say, write
from scrun.core.paths import OWN_LOG
from scrun.core.times import moment
from scrun.model.record import OUTPUT, TIMES
from scrun.protocol import wire
from scrun.protocol.attach import DATA, END, FRAMED

_PIECE = 65536
_STAMP = re.compile(rb'time="([^"]+)"|.*"time":"([^"]+)"}$')  # as text and as JSON


def run(parsed: Parsed) -> int:
    if parsed.count("follow") and parsed.text("until"):
        raise UsageError("logs --until has an end already: leave --follow out")
    if parsed.count("supervisor"):
        return _print_own_log(record_root(parsed), parsed)
    if not parsed.id:
        raise UsageError("logs needs a container-id, or --supervisor: see 'scrun logs --help'")
    container, directory = resolve(parsed)
    kind = "messages" if parsed.count("messages") else "output"
    try:
        # by its descriptor: the owner of the root directory may replace the record meanwhile
        record = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise UnknownContainer(f"container {container} does not exist") from None
    try:
        name = "log" if kind == "messages" else OUTPUT
        files, lost = open_both(name, record), lost_bytes(name, record)
        times: list[tuple[int, int]] = []
        if _wants_times(parsed):
            times = _times_of_output(record, lost) if name == OUTPUT else _times_of_lines(files)
        begin, end = _range(parsed, files, times)
    except FileNotFoundError:
        raise StateError(
            f"container {container}: its output is not kept here: it goes where `scrun run` was "
            "redirected to, or to the engine that created it (podman logs, docker logs, ...); "
            "`scrun logs --messages` has what scrun says"
        ) from None
    finally:
        os.close(record)
    # another user's output may contain control characters for this terminal
    is_said = kind == "messages" or os.fstat(files[-1]).st_uid != os.geteuid()
    show: Callable[[bytes], None] = say if is_said else write
    if parsed.count("timestamps") and kind == "output":  # messages have them
        show = _Stamped(show, times, begin, sum(os.fstat(file).st_size for file in files))
    if parsed.count("follow"):
        try:
            sock: _socket.socket | None = wire.connect_supervisor(directory, "supervisor")
        except wire.NOBODY:
            sock = wait_for_successor(directory)
        if sock is not None:  # else the files do not grow any more
            fields = [b"follow", os.fsencode(container), kind.encode()]
            watch = Watch(directory, name, fields, lost + begin)
            return _follow(watch, sock, parsed, show, begin)
    _print(files, begin, end, show)
    if lost and not begin:
        remedy = "see `output_limit` in [log] of scrun.toml(5)"
        text = f"scrun: the first {lost} bytes are gone: {remedy}\n"
        try:
            os.write(2, text.encode())
        except OSError:
            pass
    return 0


def _wants_times(parsed: Parsed) -> bool:
    return not parsed.options.keys().isdisjoint(("since", "until", "timestamps"))


def _range(parsed: Parsed, files: list[int], times: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the bytes from which on, and up to which, the options ask for the files.

    `times` are seconds, each with the byte from which on text was written then or later.
    """
    begin, size = 0, sum(os.fstat(file).st_size for file in files)
    end = size
    if (since := time_option(parsed, "since")) is not None:
        begin = _since(times, since, size)
    if (until := time_option(parsed, "until")) is not None:
        end = max(_since(times, until + 1, size), begin)
    if (lines := _lines(parsed.text("tail"))) is not None:
        begin = max(begin, _last(files, lines, end))
    return begin, end


def time_option(parsed: Parsed, option: str) -> int | None:
    """Return the second that an option names."""
    if (text := parsed.text(option)) is None:
        return None
    seconds = moment(text, time.time())
    if seconds is None:
        raise UsageError(
            f"--{option} {text}: is not a time such as 2026-05-01T12:00:00, a number of seconds "
            "since 1970 or a duration before now such as 1h30m"
        )
    return int(seconds)


def _since(times: list[tuple[int, int]], second: int, size: int) -> int:
    """Return from which byte on the text may have been written in a second or later."""
    if times and times[0][0] < second:
        later = (offset for then, offset in times if then >= second)
        return min(max(next(later, size), 0), size)
    return 0


class _Stamped:
    """Shows text with the time before each line."""

    def __init__(
        self, show: Callable[[bytes], None], times: list[tuple[int, int]], at: int, known: int
    ) -> None:
        """`at` is the next byte; text from `known` on is written now."""
        self._show, self._times = show, times
        self._offsets = [offset for _, offset in times]
        self._at, self._known = at, known
        self._begins = True

    def __call__(self, piece: bytes) -> None:
        shown = []
        for line in re.findall(rb"[^\n]*\n|[^\n]+", piece):
            if self._begins:
                shown.append(self._stamp())
            shown.append(line)
            self._begins = line.endswith(b"\n")
            self._at += len(line)
        self._show(b"".join(shown))

    def _stamp(self) -> bytes:
        second = time.time()
        if self._at < self._known and self._times:
            second = self._times[max(bisect_right(self._offsets, self._at) - 1, 0)][0]
        return time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime(second)).encode()


def _times_of_lines(files: list[int]) -> list[tuple[int, int]]:
    """Find when messages were written, from the time in each."""
    found, offset = [], 0
    for file in files:
        content = os.pread(file, os.fstat(file).st_size, 0)
        for line in content.splitlines(keepends=True):
            if (stamp := _STAMP.match(line)) is not None:
                then = moment((stamp[1] or stamp[2]).decode(errors="replace"), 0)
                if then is not None:
                    found.append((int(then), offset))
            offset += len(line)
    return found


def _times_of_output(record: int, lost: int) -> list[tuple[int, int]]:
    """Read when output was written, from the file of times beside it."""
    found = []
    try:
        for file in open_both(OUTPUT + TIMES, record):
            with open(file, "rb") as lines:
                for line in lines:
                    second, _, offset = line.strip().partition(b" ")
                    if second.isdigit() and offset.isdigit():  # a full disk may cut a line
                        found.append((int(second), int(offset) - lost))
    except FileNotFoundError:
        pass
    return found


def _print_own_log(root: str, parsed: Parsed) -> int:
    """Print the supervisors' log, the older file first; it is missing if no fault occurred."""
    if parsed.id or parsed.count("follow") or parsed.count("messages"):
        raise UsageError(
            "logs --supervisor takes no container, and neither --follow nor --messages"
        )
    try:
        files = open_both(os.path.join(root, OWN_LOG))
    except FileNotFoundError:
        files = []
    times = _times_of_lines(files) if _wants_times(parsed) else []
    _print(files, *_range(parsed, files, times), say)
    return 0


def _print(files: list[int], begin: int, end: int, show: Callable[[bytes], None]) -> None:
    """Print files, one continuing the other, from a byte on and up to another one."""
    at = 0
    for fd in files:
        with open(fd, "rb") as file:
            size = os.fstat(fd).st_size
            file.seek(min(max(begin - at, 0), size))
            left = end - at - file.tell()
            while left > 0 and (piece := file.read(_PIECE) if show is write else file.readline()):
                show(piece[:left])
                left -= len(piece)
            at += size


def _lines(text: str | None) -> int | None:
    if text is None or text == "all":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"--tail {text}: is not a number of lines")
    return int(text)


def _last(files: list[int], lines: int, end: int) -> int:
    """Return where the last lines before `end` begin, of files that continue each other."""
    sizes, above = [], 0
    for file in files:
        sizes.append(max(min(os.fstat(file).st_size, end - above), 0))
        above += sizes[-1]
    if not lines:
        return above
    but_one = 1  # the newline at the very end
    for file, size in zip(files[::-1], sizes[::-1], strict=True):
        above -= size
        while size > 0:
            begin = max(size - _PIECE, 0)
            piece = os.pread(file, size - begin, begin)
            offset = len(piece) - but_one
            but_one = 0
            while (offset := piece.rfind(b"\n", 0, offset)) >= 0:
                lines -= 1
                if not lines:
                    return above + begin + offset + 1
            size = begin
    return 0


def _follow(
    watch: Watch,
    sock: _socket.socket,
    parsed: Parsed,
    show: Callable[[bytes], None],
    shown: int,
) -> int:
    """Show the text as it arrives, except the first bytes, which are shown already."""
    answer = watch.first(sock)
    if answer not in (b"", b"\0", FRAMED):
        return report_failure(wire.read_answer(watch.sock, answer)[1:], answer[0], parsed)
    if answer == b"\0":
        return _show_plain(watch.sock, show, shown)
    while answer == FRAMED:
        wire.wait_for_ever(watch.sock)
        while is_read([watch.sock.fileno()]):
            if (frames := watch.frames()) is None:
                break
            for kind, content in frames:
                if kind == DATA:
                    show(content)
                elif kind == END:
                    return 0
        else:
            return 0
        answer = watch.again()
    for piece in watch.rest():
        show(piece)
    watch.status()
    return 0


def _show_plain(sock: _socket.socket, show: Callable[[bytes], None], shown: int) -> int:
    """Show what an older supervisor sends, except the first bytes; nobody goes on after it."""
    wire.wait_for_ever(sock)
    while is_read([sock.fileno()]) and (piece := sock.recv(_PIECE)):
        show(piece[shown:])
        shown = max(shown - len(piece), 0)
    return 0
