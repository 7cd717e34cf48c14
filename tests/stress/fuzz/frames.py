"""What is typed, and what goes through sockets."""

import os
import socket
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from typing import NoReturn, cast

import trio

from scrun import main as program
from scrun.cli.grammar import COMMANDS
from scrun.cli.parse import parse as parse_argv
from scrun.client import progress, submit
from scrun.client.anchored import build_call
from scrun.client.ask import build_request
from scrun.client.submit import _read_reply
from scrun.client.supervisor_name import supervisor_name
from scrun.core.errors import EngineError, UsageError
from scrun.oci.ids import check_id
from scrun.oci.signals import parse_signal, signal_name
from scrun.protocol import wire
from scrun.protocol.attach import DATA, frame, take_frames
from scrun.supervisor.containers.anchors import read_signals
from scrun.supervisor.containers.containers import Containers
from scrun.supervisor.contracts.create_request import read_command_line
from scrun.supervisor.daemon.requests import ClientRequest
from scrun.supervisor.daemon.succession import Retirement, Succession
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.connection import Awaited, Shim
from scrun.supervisor.nodes.link import ShimLink
from scrun.supervisor.nodes.streams import Incoming, Outgoing
from scrun.supervisor.plugins.registry import plugins
from scrun.supervisor.scripts.process import Channel, Hangup, parse_frame
from scrun.supervisor.shim.door import TO_KNOCK, TO_PROVE, Door, listen
from scrun.supervisor.wire.frames import CALL, END, LINE, QUIET, WINDOW, BrokenFrame
from scrun.supervisor.wire.frames import DATA as TO_STREAM
from scrun.supervisor.wire.frames import LONGEST as LONGEST_FRAME
from scrun.supervisor.wire.frames import frame as plain_frame
from scrun.supervisor.wire.seals import Reader, sealed
from tests.stress.fuzz.base import LONGEST, check_error, scratch

SECRET = b"fuzz" * 8
"""Of a session; nobody who fuzzes is told."""

_INFORMATION = ("help", "usage", "version")


def argv(data: bytes) -> None:
    """Arguments, separated by NUL."""
    words = [os.fsdecode(word) for word in data.split(b"\0")]
    try:
        parsed = parse_argv(words)
    except UsageError as error:
        check_error(error)
        return
    assert parsed.command in COMMANDS or parsed.command in _INFORMATION
    if parsed.id is not None:
        assert check_id(parsed.id) == parsed.id
    if parsed.command in program._FORWARDED:
        fields = build_request(parsed, parsed.id or "")
        assert wire.frame(fields)[4:].split(b"\0") == fields
    if parsed.command in ("create", "exec"):  # the supervisor reads the same out of it
        call = read_command_line(build_call(parsed.command, 1, words)[1:], parsed.command)
        assert repr(call.parsed) == repr(parsed)
        supervisor_name("container", parsed)


def signals(data: bytes) -> None:
    """What `kill` is asked to send."""
    text = os.fsdecode(data)
    try:
        number = parse_signal(text)
    except UsageError as error:
        check_error(error)
        return
    assert parse_signal(signal_name(number)) == number


def call(data: bytes) -> None:
    """A request that carries a command line: what follows its name."""
    try:
        found = read_command_line(data.split(b"\0"), "create", "run", "exec", "shell")
    except UsageError as error:
        check_error(error)
        return
    assert 0 < found.pid <= 1 << 22
    assert 0 <= found.child_env.umask <= 0o777
    assert found.directory.startswith("/")
    assert not any("=" in name or "\0" in name for name in found.child_env.environment)


def requests(data: bytes) -> None:
    """A request to a supervisor that has no container."""
    answer = trio.run(_answer, data.split(b"\0"))
    assert answer, "a request without an answer"
    assert b"internal error" not in answer, answer
    assert len(answer) <= 4 * LONGEST


async def _answer(fields: list[bytes]) -> bytes:
    root = scratch() / "root"
    root.mkdir(mode=0o700, exist_ok=True)
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        async with plugins() as loaded, trio.open_nursery() as nursery:
            containers = Containers(str(root), "@x", loaded, nursery, lambda: None)
            retirement = Retirement(containers, _Server())
            succession = Succession(str(root), "@x", containers.adopt, nursery)
            request = ClientRequest(containers, retirement, succession, ours, fields, [])
            return await request.answer()
    raise AssertionError


class _Server:
    """The server of a supervisor that nobody succeeds."""

    requests = 1

    async def changed(self) -> None:
        raise OSError

    def step_aside(self) -> None:
        raise OSError

    def leave(self) -> NoReturn:
        raise AssertionError


class _Socket:
    """A socket that has been written to and closed."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = [*pieces, b""]

    def recv(self, size: int) -> bytes:
        assert all(len(piece) <= size for piece in self._pieces)
        return self._pieces.pop(0)

    def sendmsg(self, *message: object) -> int:
        return 1

    def setsockopt(self, *option: object) -> None:
        """There is no limit to take away."""


def answer_of(pieces: Iterable[bytes]) -> tuple[object, list[bytes]]:
    """What `create` makes of an answer, and what it shows meanwhile."""
    shown: list[bytes] = []
    before, run = progress.write_if_possible, submit._run
    progress.write_if_possible = lambda fd, line: shown.append(line)
    submit._run = lambda words: len(words)
    try:
        return _read_reply(_Socket(pieces), parse_argv(["create", "c"]))[:2], shown  # type: ignore[arg-type]
    except ConnectionError as error:
        return str(error), shown
    finally:
        progress.write_if_possible, submit._run = before, run


def reply(data: bytes) -> None:
    """The answer to `create`, with the messages before it."""
    data = data[:60000]
    in_parts = [data[at : at + 1] for at in range(min(len(data), 300))]
    assert answer_of([*in_parts, *filter(None, [data[300:]])]) == answer_of([data])
    try:
        status, content = wire.receive(_Socket([data]))  # type: ignore[arg-type]
    except ConnectionError:
        assert not data
    else:
        assert bytes([status]) + content == data


def attached(data: bytes) -> None:
    """The frames of `attach`, both ways."""
    frames, rest = take_frames(data)
    assert b"".join(frame(kind, content) for kind, content in frames) + rest == data
    assert take_frames(rest) == ([], rest)
    assert take_frames(frame(DATA, data)) == ([(DATA, data)], b"")


def anchor(data: bytes) -> None:
    """What an anchor says: signals, by name."""
    data = data[:30_000]
    whole, rest = read_signals(data)
    found, left = [], b""
    for at in range(0, len(data), 3):
        some, left = read_signals(left + data[at : at + 3])
        found += some
    assert (found, left) == (whole, rest)
    assert len(rest) <= LONGEST


def shim(data: bytes) -> None:
    """What a shim sends, over srun: its first reply and event, and a stream, are waited for."""
    link = cast("ShimLink", _Sent())
    found = Shim(link, cast("trio.Nursery", _Sent()), cast("Journal", _Sent()))
    _, reply = found._send("script", {})
    ended = found._targets["c"] = Awaited()
    output = found.table.incoming[1] = Incoming(cast("ShimLink", _Sent()), 1, "stdout", print)
    typed = found.table.outgoing[2] = Outgoing(cast("ShimLink", _Sent()), 2)
    reader = Reader(longest=found._longest, in_parts=True)
    try:
        for place in range(0, len(data), 7):
            for frame in reader.feed(memoryview(data)[place : place + 7]):
                if frame[0] not in (LINE, QUIET):
                    found._dispatch(link, *frame)
    except BrokenFrame as error:
        check_error(EngineError(str(error)))
    assert not reply.came or isinstance(reply.value, dict)
    assert not ended.came or -65 < os.waitstatus_to_exitcode(ended.value) < 256
    assert sum(map(len, output._waiting)) <= min(WINDOW, len(data))
    assert typed._allowed == WINDOW
    assert {*found.short_of_memory, *found.without_files} <= {"c"}
    assert len(reader._room) <= 2 * LONGEST_FRAME


def node(data: bytes) -> None:
    """What arrives at a shim: plain frames over srun, and sealed ones of a direct connection."""
    whole, pieces = (
        frames_of(Reader(), [data]),
        [data[at : at + 7] for at in range(0, len(data), 7)],
    )
    assert frames_of(Reader(), pieces) == whole
    sent = b"".join(plain_frame(*found) for found in whole)
    assert len(sent) <= len(data)
    # the first bytes say what somebody on the way does to frames that are right
    ours, _ = sealed(SECRET, SECRET, True)
    right = [
        (CALL, 0, b'{"call": 1}'),
        (TO_STREAM, 1, b"typed" * 9),
        (END, 1, b""),
        (QUIET, 0, b""),
    ]
    there = bytearray().join(
        ours.head(kind, stream, len(text)) + text + ours.tail(kind, text)
        for kind, stream, text in right
    )
    changed = relayed(there, data)
    theirs, _ = sealed(SECRET, SECRET, True)
    found = frames_of(Reader(theirs), [changed])
    assert found == right[: len(found)], "a frame arrived that was not sent there"
    assert changed == there or found != right or changed.startswith(there)


def frames_of(reader: Reader, pieces: Iterable[bytes]) -> list[tuple[int, int, bytes]]:
    """Return what a reader finds before it refuses the rest."""
    found = []
    with suppress(BrokenFrame):
        for piece in pieces:
            for kind, stream, payload in reader.feed(memoryview(piece)):
                found.append((kind, stream, bytes(payload)))
    return found


def relayed(right: bytearray, orders: bytes) -> bytes:
    """Return bytes as a relay passes them on: each four bytes of `orders` are one change."""
    there = bytearray(right)
    for at in range(0, min(len(orders) - 3, 64), 4):
        what, place, other, value = orders[at : at + 4]
        place, other = place % (len(there) + 1), other % (len(there) + 1)
        if what % 4 == 0 and place < len(there):
            there[place] ^= value
        elif what % 4 == 1:
            del there[place : place + value]
        elif what % 4 == 2:
            there[place:place] = there[other : other + value]
        else:
            there[place:place] = orders[at:]
    return bytes(there)


def door(data: bytes) -> None:
    """What strangers say at a port of ours, each line by one connection, also an old session's."""
    now = [0.0]
    with closing(listen()) as listener:
        address = ("127.0.0.1", listener.getsockname()[1])
        found = Door(listener, SECRET, clock=lambda: now[0])
        try:
            with ExitStack() as stack:
                said = data[:LONGEST].split(b"\n")[:40]
                for words in said:
                    stranger = stack.enter_context(socket.create_connection(address))
                    stranger.sendall(words)
                for _ in range(len(said) + 1):
                    assert not found.turn(), "somebody came in without the secret"
                now[0] += TO_KNOCK + TO_PROVE
                assert not found.turn()
                assert (found.unknown(), found.strangers) == (0, len(said))
                assert len(found.who()) <= LONGEST
        finally:
            found.close()


class _Sent:
    """A connection, a nursery or a journal that keeps nothing."""

    def __init__(self) -> None:
        self.before = bytearray(b"before")

    def put(self, kind: int, stream: int = 0, payload: bytes = b"") -> None:
        """Send it nowhere."""

    def start_soon(self, call: object) -> None:
        """Never begin it."""

    def write(self, level: str, text: str) -> None:
        """Write it nowhere."""


def worker(data: bytes) -> None:
    """What the process of a script sends."""
    frames = trio.run(_frames, [data])
    assert trio.run(_frames, [data[i : i + 7] for i in range(0, min(len(data), 700), 7)]) == (
        frames if len(data) <= 700 else trio.run(_frames, [data[:700]])
    )
    for found in frames:
        try:
            kind, fields = parse_frame(found)
        except Hangup:
            continue
        assert kind
        assert kind in (b"loaded", b"stop", b"opened", b"called") or 1 <= len(fields) <= 2


async def _frames(pieces: list[bytes]) -> list[list[bytes]]:
    ours, theirs = socket.socketpair()
    channel, found = Channel(ours), []

    async def send() -> None:
        with trio.socket.from_stdlib_socket(theirs) as sock:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[await sock.send(rest) :]

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while True:
                try:
                    found.append(await channel.receive())
                except Hangup:
                    break
            nursery.cancel_scope.cancel()
    finally:
        channel.close()
    return found
