"""The door of a port: who knows the secret comes in, whatever others do."""

import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

from scrun.core.ready import ready
from scrun.supervisor.shim import door as module
from scrun.supervisor.shim.dial import dial
from scrun.supervisor.shim.door import MOST_UNKNOWN, TO_KNOCK, TO_PROVE, Door, listen
from scrun.supervisor.wire.frames import RANDOM, knock, proof
from tests.harness.strangers import KINDS, strangers

SECRET = bytes(range(32))

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


class Clock:
    """A clock that a test turns."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Port:
    """A door, and what connects to it."""

    def __init__(
        self,
        stack: ExitStack,
        clock: Callable[[], float],
        expected: int = 1,
        *,
        knocks: bool = True,
    ) -> None:
        self.listener = listen()
        stack.callback(self.listener.close)
        self.door = Door(self.listener, SECRET, expected, clock, knocks)
        stack.callback(self.door.close)
        self.port = self.listener.getsockname()[1]
        self._stack = stack

    def connect(self, said: bytes = b"") -> socket.socket:
        sock = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port)))
        sock.settimeout(10)
        sock.sendall(said)
        return sock

    def is_open(self, sock: socket.socket) -> bool:
        """Whether a connection was not closed: what is closed is so at once, here."""
        sock.setblocking(False)
        try:
            return bool(sock.recv(1))
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def port(clock: Clock) -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack, clock)


def proved(port: Port, sock: socket.socket, said: bytes) -> bytes:
    """Say the rest of the proof; return both ends' random bytes."""
    assert port.door.turn() == []
    both = said + sock.recv(RANDOM)
    sock.sendall(proof(SECRET, b"shim", both))
    return both


def test_who_knows_the_secret_comes_in(port: Port) -> None:
    said = knock(SECRET, os.urandom(16))
    sock = port.connect(said)
    both = proved(port, sock, said)
    [(fd, random)] = port.door.turn()
    assert random == both
    assert sock.recv(RANDOM) == proof(SECRET, b"supervisor", both)
    os.write(fd, b"in")
    assert sock.recv(2) == b"in"
    os.close(fd)
    assert port.door.strangers == 0
    assert port.door.who() == ""


def test_a_shim_of_an_older_version(clock: Clock) -> None:
    """What it says first, anybody can say: so that keeps no place."""
    with ExitStack() as stack:
        port = Port(stack, clock, knocks=False)
        others = [port.connect(bytes(RANDOM)) for _ in range(MOST_UNKNOWN + 2)]
        assert port.door.turn() == []
        for other in others:
            with suppress(ConnectionResetError):
                other.recv(RANDOM)
        assert [port.is_open(other) for other in others[:2]] == [False, True]
        sock = port.connect(bytes(RANDOM))
        both = proved(port, sock, bytes(RANDOM))
        [(fd, found)] = port.door.turn()
        os.close(fd)
        assert found == both


def test_in_the_smallest_parts(port: Port) -> None:
    said = knock(SECRET, os.urandom(16))
    sock = port.connect()
    for byte in said:
        assert port.door.turn() == []
        sock.sendall(bytes([byte]))
    proved(port, sock, said)
    [(fd, _)] = port.door.turn()
    os.close(fd)


@pytest.mark.parametrize("wrong", ["knock", "proof", "copied"])
def test_who_does_not_know_it_does_not(port: Port, wrong: str) -> None:
    """And need not go by itself: a client that stays gets nothing all the same."""
    said = knock(b"another" if wrong == "knock" else SECRET, os.urandom(16))
    first = port.connect(said)
    sock = first
    if wrong == "copied":
        proved(port, first, said)
        sock = port.connect(said)
    elif wrong == "proof":
        assert port.door.turn() == []
        sock.sendall(bytes(RANDOM) if sock.recv(RANDOM) else b"")
    came = port.door.turn() + port.door.turn()
    assert len(came) == (1 if wrong == "copied" else 0)
    for fd, _ in came:
        os.close(fd)
    assert not port.is_open(sock)
    assert port.door.strangers == 1
    assert port.door.who() == f"1 of user {os.getuid()}"


def test_time_to_prove_it(port: Port, clock: Clock) -> None:
    """A second to say something right; five for the rest."""
    said = knock(SECRET, os.urandom(16))
    idle, slow = port.connect(), port.connect(said)
    assert port.door.turn() == []
    assert port.door.patience() == TO_KNOCK == 1.0
    clock.now += 1.01
    assert port.door.turn() == []
    assert not port.is_open(idle)
    assert port.is_open(slow)
    assert 3.9 < port.door.patience() < TO_PROVE == 5.0
    clock.now += 4
    assert port.door.turn() == []
    assert port.door.strangers == 2
    assert port.door.patience() == float("inf")


def test_what_has_come_counts_though_it_is_late(port: Port, clock: Clock) -> None:
    """We may have been busy."""
    sock = port.connect()
    assert port.door.turn() == []
    said = knock(SECRET, os.urandom(16))
    sock.sendall(said)
    clock.now += 60
    proved(port, sock, said)
    clock.now += 60
    [(fd, _)] = port.door.turn()
    os.close(fd)


def test_the_newest_takes_the_place_of_the_oldest(port: Port) -> None:
    """But not of one that has begun to prove it."""
    said = knock(SECRET, os.urandom(16))
    honest = port.connect(said)
    assert port.door.turn() == []
    idle = [port.connect() for _ in range(MOST_UNKNOWN + 3)]
    port.door.turn()
    assert [port.is_open(one) for one in idle] == [False] * 2 + [True] * (MOST_UNKNOWN + 1)
    proved(port, honest, said)
    [(fd, _)] = port.door.turn()
    os.close(fd)
    assert port.door.strangers == 2


def test_many_who_are_expected(clock: Clock) -> None:
    """The tasks of a large step, all at once, none of whom has said anything yet."""
    with ExitStack() as stack:
        port = Port(stack, clock, 100)
        all_of_them = [port.connect() for _ in range(100)]
        for _ in range(4):
            port.door.turn()
        assert all(map(port.is_open, all_of_them))


def test_who_tries_several_addresses_is_no_stranger(port: Port) -> None:
    for _ in range(4):
        port.connect().close()
    port.connect(knock(SECRET, os.urandom(16))).close()
    port.door.turn()
    port.door.turn()
    assert port.door.strangers == 0
    port.connect().close()
    port.connect(b"x").close()
    port.door.turn()
    port.door.turn()
    assert port.door.strangers == 2


def test_out_of_descriptors(port: Port, clock: Clock) -> None:
    """A stranger goes for a newcomer; if there is none, we wait a moment, and are not woken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    idle = port.connect()
    assert port.door.turn() == []
    said = knock(SECRET, os.urandom(16))
    first, second = port.connect(said), port.connect()
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        assert port.door.turn() == []
        assert not port.is_open(idle)
        assert port.door.patience() == pytest.approx(0.1)
        assert port.door.turn() == []
        poll = select.poll()
        poll.register(port.door.fileno(), select.POLLIN)
        assert poll.poll(0) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    clock.now += 0.2
    proved(port, first, said)
    [(fd, _)] = port.door.turn()
    os.close(fd)
    assert port.is_open(second)


@pytest.mark.covers("security connect, from anywhere")
def test_names_are_bounded(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NAMES", 2)
    monkeypatch.setattr(module, "_users_of_sockets", lambda _: {})
    for last in (5, 6, 7, 8):
        sock = socket.socket()
        sock.bind((f"127.0.0.{last}", 0))
        with sock:
            sock.connect(("127.0.0.1", port.port))
            sock.sendall(bytes(RANDOM))
            port.door.turn()
    assert port.door.strangers == 4
    assert port.door.who() == "2 of others, 1 of 127.0.0.5, 1 of 127.0.0.6"


@contextmanager
def served(door: Door, count: int) -> Iterator[list[int]]:
    """Stand at the door in a thread, until so many have come in."""
    came: list[int] = []
    stop, stopped = os.pipe()
    poll = select.poll()
    for fd in (door.fileno(), stop):
        poll.register(fd, select.POLLIN)

    def serve() -> None:
        while len(came) < count:
            ready = dict(poll.poll(min(door.patience(), 60) * 1000 + 1))
            if stop in ready:
                return
            came.extend(fd for fd, _ in door.turn())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield came
        thread.join(60)
        assert len(came) == count
    finally:
        os.close(stopped)
        thread.join()
        for fd in (stop, *came):
            os.close(fd)


@pytest.mark.covers(
    "security connect to its ports, hundreds of times: silent, with noise, with copies, again"
)
@pytest.mark.parametrize("kind", KINDS)
def test_strangers_keep_nobody_out(kind: str) -> None:
    """Forty of them, of each kind, all the time; forty shims come in at their first try."""
    with ExitStack() as stack:
        port = Port(stack, time.monotonic)
        there = stack.enter_context(strangers(kind, [port.port], 40))
        stack.enter_context(served(port.door, 40))
        there.wait_for(40)
        for _ in range(40):
            dial([("127.0.0.1", port.port)], SECRET, 30)[0].close()
        assert port.door.strangers


def test_who_is_turned_away_tries_again(port: Port) -> None:
    """A moment later there may be room."""
    closed: list[int] = []

    def close_two() -> None:
        while len(closed) < 2:
            assert ready([port.listener.fileno()], seconds=60)[0]
            fd, _ = port.listener._accept()  # type: ignore[attr-defined]
            os.set_blocking(fd, True)
            closed.append(len(os.read(fd, RANDOM)))
            os.close(fd)

    thread = threading.Thread(target=close_two)
    thread.start()
    with ThreadPoolExecutor() as pool:
        dialled = pool.submit(dial, [("127.0.0.1", port.port)], SECRET, 30)
        thread.join()
        with served(port.door, 1):
            dialled.result()[0].close()
    assert closed == [RANDOM, RANDOM]
