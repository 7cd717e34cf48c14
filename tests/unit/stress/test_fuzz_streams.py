"""Streams, however they are cut: the whole is what counts. And requests that are nearly right."""

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from scrun.cli.grammar import COMMANDS, options_of
from scrun.cli.parse import parse
from scrun.core.errors import LONGEST, UsageError
from scrun.protocol import wire
from scrun.protocol.attach import frame, take_frames
from scrun.supervisor.containers.anchors import read_signals
from scrun.supervisor.daemon.requests import receive
from scrun.supervisor.scripts.process import Channel, Hangup
from tests.harness.limits import limited
from tests.harness.strategies import splits
from tests.stress.fuzz.frames import answer_of
from tests.stress.fuzz.targets import TARGETS

field = st.binary(max_size=20).map(lambda content: content.replace(b"\0", b""))
fields = st.lists(field, min_size=1, max_size=8)


Read = Callable[[socket.socket], Awaitable[object]]


async def _through(pieces: list[bytes], read: Read) -> object:
    """What is read at the other end of a socket, when these pieces arrive one by one."""
    ours, theirs = socket.socketpair()

    async def send() -> None:
        with trio.socket.from_stdlib_socket(theirs) as sock:
            for piece in pieces:
                if piece:
                    await sock.send(piece)
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        found = await read(ours)
        nursery.cancel_scope.cancel()
    return found


async def _request(sock: socket.socket) -> object:
    with trio.socket.from_stdlib_socket(sock) as connection:
        try:
            return await receive(connection, [])
        except UsageError as error:
            return str(error)


async def _of_channel(sock: socket.socket) -> object:
    channel, found = Channel(sock), []
    try:
        while True:
            found.append(await channel.receive())
    except Hangup:
        return found
    finally:
        channel.close()


@given(fields.flatmap(lambda some: st.tuples(st.just(some), splits(wire.frame(some)))))
def test_a_request_in_pieces(case: tuple[list[bytes], list[bytes]]) -> None:
    sent, pieces = case
    assert trio.run(_through, pieces, _request) == (sent, b"")


@given(st.binary(max_size=40).flatmap(lambda data: st.tuples(st.just(data), splits(data))))
def test_what_is_no_request_in_pieces(case: tuple[bytes, list[bytes]]) -> None:
    """All that counts is the first frame: what came with it is told apart."""
    data, pieces = case
    found = trio.run(_through, pieces, _request)
    length = 4 + int.from_bytes(data[:4], "big")
    if len(data) >= 4 and length > wire.LIMIT:
        assert found == "the request is too long"
    elif len(data) < 4 or len(data) < length:
        assert found == "this is not a request"
    else:
        assert isinstance(found, tuple)
        request, content = found
        assert wire.frame(request) == data[:length]
        assert data[length:].startswith(content)


@given(st.lists(fields, max_size=4).flatmap(
    lambda frames: st.tuples(st.just(frames), splits(b"".join(map(wire.frame, frames))))
))  # fmt: skip
def test_frames_of_a_worker_in_pieces(case: tuple[list[list[bytes]], list[bytes]]) -> None:
    sent, pieces = case
    assert trio.run(_through, pieces, _of_channel) == sent


kinds = st.sampled_from((b"d", b"w", b"s", b"x", b"\0"))
frames = st.lists(st.tuples(kinds, st.binary(max_size=20)), max_size=5)


@given(frames, st.binary(max_size=4), st.data())
def test_frames_of_attach_in_pieces(
    sent: list[tuple[bytes, bytes]], rest: bytes, data: st.DataObject
) -> None:
    whole = b"".join(frame(kind, content) for kind, content in sent) + rest
    found: list[tuple[bytes, bytes]] = []
    left = b""
    for piece in data.draw(splits(whole)):
        some, left = take_frames(left + piece)
        found += some
    assert (found, left) == (sent, rest)


words = st.sampled_from(
    (
        b"TERM\n",
        b"WINCH\n",
        b"USR1\n",
        b"\n",
        b"NONSENSE\n",
        b"SIGTERM\n",
        b"\xff\n",
        b"HUP",
        b"x" * 70,
    )
)


@given(st.lists(words, max_size=8).map(b"".join), st.data())
def test_lines_of_an_anchor_in_pieces(content: bytes, data: st.DataObject) -> None:
    found, left = [], b""
    for piece in data.draw(splits(content)):
        some, left = read_signals(left + piece)
        found += some
    assert (found, left) == read_signals(content)
    assert len(left) <= 64  # whatever it says, no more than a line is kept


messages = st.sampled_from(
    (b"\xfeinfo waits\0", b"\xffscrun: x\n\0", b"\xfd\0", b"\xfdjob 1\0", b"\xff\xff\0")
)
answers = st.sampled_from((b"\0", b"\1why", b"\x7fnot found", b"", b"\xfehalf", b"\0\xfe\0"))


@given(st.lists(messages, max_size=4).map(b"".join), answers, st.data())
def test_an_answer_in_pieces(before: bytes, answer: bytes, data: st.DataObject) -> None:
    pieces = data.draw(splits(before + answer))
    status, shown = answer_of([piece for piece in pieces if piece])
    assert (status, shown) == answer_of([piece for piece in [before + answer] if piece])
    if answer[:1] in (b"\0", b"\1", b"\x7f"):
        assert status == (answer[0], answer[1:])


# Requests


CALL = [b"4711", b"22", b"/b", b"2", b"create", b"c1", b"A=b"]
ODD = (
    b"", b"-1", b"x", b"9" * 5000, b"1_000", b" 1", b"\xff", b"relative", b"\xd9\xa1", b"0",
    b"777777", b"8", b"create", b"kill", b"--help", b"=", b"=x", b"A", b"c1", b"4194305",
    b"a" * 100_000,
)  # fmt: skip


@given(st.integers(0, len(CALL) - 1), st.sampled_from(ODD), st.booleans())
def test_one_field_of_a_call(number: int, odd: bytes, instead: bool) -> None:
    changed = [*CALL[:number], odd, *CALL[number + instead :]]
    with limited():
        TARGETS["call"].check(b"\0".join(changed))
        TARGETS["request"].check(b"\0".join([b"create", *changed]))
        TARGETS["request"].check(b"\0".join([b"exec", *changed]))


REQUESTS = [seed.split(b"\0") for seed in TARGETS["request"].seeds]


@given(st.sampled_from(REQUESTS), st.data())
def test_one_field_of_a_request(request_: list[bytes], data: st.DataObject) -> None:
    """Too many, too few, or one that is odd: an answer, and never that of a fault."""
    number = data.draw(st.integers(0, len(request_) - 1))
    odd = data.draw(st.sampled_from((*ODD, b"[1]", b"{", b"null", b"[" * 3000, b'{"a":NaN}')))
    kept = data.draw(st.integers(number, len(request_)))
    with limited():
        TARGETS["request"].check(
            b"\0".join([*request_[:number], odd, *request_[number + 1 : kept]])
        )


# Command lines


@given(
    st.sampled_from(sorted(COMMANDS)),
    st.integers(0, 3),
    st.sampled_from(("--nonsense", "--nonsense=1", "-\x01", "-\u2028x", "--" + "n" * 100_000)),
)
def test_an_option_that_there_is_not(command: str, place: int, wrong: str) -> None:
    argv = [command, "c1", "x"]
    argv.insert(min(place, 3), wrong)
    if place > 1 and any(spot.endswith("...]") for spot in COMMANDS[command][1]):
        return  # it belongs to the program that is to run
    with limited(), pytest.raises(UsageError) as caught:
        parse(argv)
    assert repr(wrong.partition("=")[0])[:900] in str(caught.value) or place > 1
    assert len(str(caught.value)) <= LONGEST


@given(st.data())
def test_options_in_any_of_their_forms(data: st.DataObject) -> None:
    """An option's value comes out as it went in, wherever its form allows it to be."""
    command = data.draw(st.sampled_from(["create", "run", "exec", "update", "events"]))
    option = data.draw(
        st.sampled_from(
            [o for o in options_of(command) if o[2] and "|" not in o[2] and o[2][0] != "["]
        )
    )
    values = st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text)
    if (command, option[0]) == ("run", "time"):  # only what looks like a limit: '-t' is podman's
        values = st.from_regex(r"([0-9]{1,3}-)?[0-9]{1,3}(:[0-9]{2}){0,2}", fullmatch=True)
    value = data.draw(values)
    forms = [[f"--{option[0]}={value}"], [f"--{option[0]}", value], [f"-{option[0]}={value}"]]
    forms += [[f"-{letter}", value] for letter in option[1]]
    before = data.draw(st.sampled_from(forms))
    parsed = parse([command, *before, "c1"])
    found = parsed.options[option[0]]
    assert found == ([value] if option[4] else value)
    assert parsed.id == "c1"
