"""Frames, and who is at the other end of a socket."""

import array
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.protocol import wire
from tests import CHECKOUT
from tests.harness import users
from tests.harness.program import run_program

# fields are what execve(2) takes: bytes without NUL
field = st.binary(max_size=40).map(lambda content: content.replace(b"\0", b""))


@pytest.mark.parametrize(
    ("fields", "framed"),
    [
        ([b"state", b"c1"], b"\0\0\0\x08state\0c1"),
        ([b"state"], b"\0\0\0\x05state"),
        ([b"delete", b"c1", b""], b"\0\0\0\x0adelete\0c1\0"),
        ([b""], b"\0\0\0\0"),
        ([b"", b""], b"\0\0\0\x01\0"),
        ([b"x" * 300], b"\0\0\x01\x2c" + b"x" * 300),
    ],
)
def test_frame(fields: list[bytes], framed: bytes) -> None:
    assert wire.frame(fields) == framed


@given(st.lists(field, min_size=1, max_size=20))
def test_a_split_undoes_a_frame(fields: list[bytes]) -> None:
    framed = wire.frame(fields)
    assert int.from_bytes(framed[:4], "big") == len(framed) - 4
    assert framed[4:].split(b"\0") == fields


def listening(path: Path) -> socket.socket:
    """A listener at a path of any length."""
    listener = socket.socket(socket.AF_UNIX)
    directory = os.open(path.parent, os.O_PATH)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
    listener.listen(8)
    listener.settimeout(10)
    return listener


@pytest.fixture
def long_directory(tmp_path: Path) -> Path:
    made = tmp_path / ("d" * 200) / ("é" * 100)
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize("length", [*range(104, 111), 400])
def test_connect_whatever_the_length_of_the_path(length: int) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        room = length - len(base) - len("/") - len("/s")
        parts = [f"{'d' * min(room, 200)}"] + (["e" * (room - 201)] if room > 200 else [])
        directory = Path(base, *parts)
        directory.mkdir(parents=True)
        assert len(f"{directory}/s") == length
        with listening(directory / "s"):
            before = len(os.listdir("/proc/self/fd"))
            wire.connect(str(directory), "s").close()
            wire.connect_supervisor(str(directory), "s").close()
            assert len(os.listdir("/proc/self/fd")) == before


def test_connect_in_a_long_directory_that_is_not_ascii(long_directory: Path) -> None:
    with listening(long_directory / "@x"):
        wire.connect(str(long_directory), "@x").close()


def test_connect_through_a_link(tmp_path: Path) -> None:
    """As the commands do: ROOT/ID/supervisor is a link to the socket."""
    (tmp_path / "id").mkdir()
    (tmp_path / "id" / "supervisor").symlink_to("../@x")
    with listening(tmp_path / "@x"):
        wire.connect_supervisor(str(tmp_path / "id"), "supervisor").close()


def test_connect_through_a_link_in_a_long_directory(long_directory: Path) -> None:
    (long_directory / "id").mkdir()
    (long_directory / "id" / "supervisor").symlink_to("../@x")
    with listening(long_directory / "@x"):
        wire.connect_supervisor(str(long_directory / "id"), "supervisor").close()


@pytest.mark.parametrize("place", ["short", "long"])
@pytest.mark.usefixtures("no_descriptor_stays")
def test_nobody_listens(place: str, tmp_path: Path, long_directory: Path) -> None:
    directory = tmp_path if place == "short" else long_directory
    with pytest.raises(FileNotFoundError):
        wire.connect(str(directory), "s")
    with pytest.raises(FileNotFoundError):
        wire.connect(str(directory / "missing"), "s")
    listening(directory / "s").close()
    with pytest.raises(ConnectionRefusedError):
        wire.connect(str(directory), "s")
    (directory / "file").write_text("")
    with pytest.raises(ConnectionRefusedError):
        wire.connect(str(directory), "file")


SERVE = """
import os, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
listener.listen(8)  # who listens is who SO_PEERCRED tells
print(os.geteuid(), flush=True)
sys.stdin.read()
"""
CALL = """
import sys
sys.path.insert(0, sys.argv[1])
from scrun.protocol import wire
try:
    wire.connect_supervisor(sys.argv[2], "s").close()
    print("connected")
except OSError as error:
    print(type(error).__name__, error)
"""


def ids(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="scrun-wire-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def answer_to(caller: int, server: int, directory: Path) -> str:
    """What a caller of one user gets from a server of another."""
    package = directory / "scrun"  # a copy: not every user may read the checkout
    for name in ("core", "protocol"):
        shutil.copytree(CHECKOUT / "scrun" / name, package / name)
    shutil.copy(CHECKOUT / "scrun" / "__init__.py", package)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "s"))
    os.chmod(directory / "s", 0o666)
    python = [sys.executable, "-I", "-S", "-c"]
    with (
        listener,
        subprocess.Popen(
            [*ids(server), *python, SERVE, str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        ) as serving,
    ):
        assert serving.stdout is not None
        assert serving.stdin is not None
        assert serving.stdout.readline() == b"%d\n" % server
        done = run_program(
            [*ids(caller), *python, CALL, str(directory), str(directory)], check=True
        )
        serving.stdin.close()
        assert serving.wait(10) == 0
    return done.stdout


@pytest.mark.by_root
def test_another_users_socket_is_refused(public: Path) -> None:
    user = users.ordinary().uid
    answer = answer_to(user, user + 1, public)
    assert answer.startswith("PermissionError")
    assert f"uid {user + 1}" in answer
    assert str(public) in answer


@pytest.mark.by_root
@pytest.mark.parametrize(
    ("caller", "server", "answer"),
    [
        ("user", "root", "PermissionError"),  # even that
        ("user", "user", "connected\n"),
        ("root", "user", "connected\n"),
    ],
)
def test_who_may_ask_whom(public: Path, caller: str, server: str, answer: str) -> None:
    uids = {"root": 0, "user": users.ordinary().uid}
    assert answer_to(uids[caller], uids[server], public).startswith(answer)


@pytest.mark.by_root
def test_a_refused_connection_is_closed(public: Path) -> None:
    """In this process: the caller's user is changed for the call only."""
    user = users.ordinary().uid
    with listening(public / "s"):
        os.chmod(public / "s", 0o666)
        before = len(os.listdir("/proc/self/fd"))
        os.seteuid(user)
        try:
            with pytest.raises(PermissionError):
                wire.connect_supervisor(str(public), "s")
        finally:
            os.seteuid(0)
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


@pytest.mark.parametrize(
    ("said", "heard"),
    [(b"\0", (0, b"")), (b"\1why", (1, b"why")), (b"\0{}\n", (0, b"{}\n")), (b"\xff", (255, b""))],
)
def test_receive(pair: Pair, said: bytes, heard: tuple[int, bytes]) -> None:
    ours, theirs = pair
    theirs.sendall(said)
    theirs.close()
    assert wire.receive(ours) == heard


def test_receive_nothing(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        wire.receive(ours)


def test_receive_from_one_that_died_with_the_request_unread(pair: Pair) -> None:
    ours, theirs = pair
    wire.send(ours, [b"state", b"c1"])
    theirs.close()
    with pytest.raises(ConnectionResetError):
        wire.receive(ours)


def test_receive_what_comes_in_parts(pair: Pair) -> None:
    ours, theirs = pair
    content = os.urandom(1 << 20)

    def say() -> None:
        with theirs:
            theirs.sendall(b"\0")
            theirs.sendall(content)

    thread = threading.Thread(target=say)
    thread.start()
    heard = wire.receive(ours)
    thread.join()
    assert heard == (0, content)


def test_send_to_nobody(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    wire.send(ours, [b"state", b"c1"])
    with pytest.raises(ConnectionError):
        wire.receive(ours)


def test_send_descriptors_beside_the_first_byte(pair: Pair) -> None:
    ours, theirs = pair
    ends = os.pipe()
    wire.send(ours, [b"create", b"1"], [ends[0], ends[1], 2])
    rights = socket.CMSG_SPACE(4 * 4)
    data, ancillary, flags, _ = theirs.recvmsg(1, rights, socket.MSG_CMSG_CLOEXEC)
    assert data == b"\0"
    assert not flags & socket.MSG_CTRUNC
    [(level, kind, content)] = ancillary
    assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    received = array.array("i", content)
    os.write(received[1], b"through")
    assert os.read(ends[0], 10) == b"through"
    assert data + theirs.recv(100) == wire.frame([b"create", b"1"])
    for fd in (*ends, *received):
        os.close(fd)


def test_send_a_large_request_with_descriptors(pair: Pair) -> None:
    """Larger than the socket's buffer: the first part takes the descriptors, the rest follows."""
    ours, theirs = pair
    fields = [b"create", b"x" * (2 << 20), b"end"]
    got = bytearray()
    fds: list[int] = []

    def take() -> None:
        while True:
            data, ancillary, _, _ = theirs.recvmsg(65536, socket.CMSG_SPACE(16))
            for _, _, content in ancillary:
                fds.extend(struct.unpack(f"{len(content) // 4}i", content))
            if not data:
                return
            got.extend(data)

    thread = threading.Thread(target=take)
    thread.start()
    wire.send(ours, fields, [0, 1])
    ours.shutdown(socket.SHUT_WR)
    thread.join()
    assert bytes(got) == wire.frame(fields)
    assert len(fds) == 2
    for fd in fds:
        os.close(fd)


class Overtaken(socket.socket):
    """A socket whose peer has answered and gone by the time that sendmsg returns."""

    peer: socket.socket

    def sendmsg(self, *args: Any) -> int:
        sent = super().sendmsg(*args)
        with self.peer:
            self.peer.recv(sent)
            self.peer.sendall(b"\1why")
        return sent


def test_an_answer_may_overtake_the_sender(pair: Pair) -> None:
    """A refusal can be there before `send` has returned: it is an answer, not a lost peer."""
    ours, theirs = pair
    with Overtaken(fileno=os.dup(ours.fileno())) as sock:
        sock.peer = theirs
        wire.send(sock, [b"create", b"1"], [2])
        assert wire.receive(sock) == (1, b"why")


def test_an_answer_without_an_end_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "REPLY", 100_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"\0" + b"x" * 100_001)
        with pytest.raises(OSError, match="longer than 0 MiB"):
            wire.receive(ours)


@pytest.mark.parametrize("said", [b"", b"\0a"])
def test_an_answer_that_does_not_come_is_not_waited_for(
    said: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its first byte may take its time, but for root who asks another user's supervisor."""
    monkeypatch.setattr(wire, "_ANSWER", 0.3)
    with listening(tmp_path / "s") as listener:
        ours = wire.connect_supervisor(str(tmp_path), "s")
        with listener.accept()[0] as theirs:
            theirs.sendall(said)
            if not said:
                wire._wait_at_most(ours, 0.2)
            with pytest.raises(TimeoutError, match="in time"):
                wire.receive(ours)
        ours.close()


def test_drops_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes soon enough, and the end never does."""
    monkeypatch.setattr(wire, "_ANSWER", 0.3)
    ours, theirs = socket.socketpair()
    done = threading.Event()

    def drip() -> None:
        while not done.wait(0.02):
            theirs.sendall(b"\0")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(TimeoutError, match="in time"):
            wire.receive(ours)
    finally:
        done.set()
        thread.join()
        ours.close()
        theirs.close()


@pytest.mark.by_root
def test_root_does_not_wait_for_ever_for_another_user(public: Path) -> None:
    """The directory tells, before anybody is at the other end; the listener takes nobody."""
    user = users.ordinary().uid
    os.chown(public, user, user)
    with listening(public / "s"):
        sock = wire.connect_supervisor(str(public), "s")
        size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
        assert int.from_bytes(size[:8], "little") == wire.PATIENCE
        sock.close()


@pytest.mark.covers("security answer in its place, or at a console socket")
@pytest.mark.parametrize(("seconds", "late"), [(29.0, False), (31.0, True)])
def test_an_answer_that_comes_byte_by_byte(
    monkeypatch: pytest.MonkeyPatch, seconds: float, late: bool
) -> None:
    """Each byte in time, and yet without end: all of it has half a minute."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"\0")
        times = iter((100.0,))
        monkeypatch.setattr("time.monotonic", lambda: next(times, 100.0 + seconds))

        def go_on() -> None:
            theirs.sendall(b"x")
            theirs.shutdown(socket.SHUT_WR)

        timer = threading.Timer(0.2, go_on)
        timer.start()
        if late:
            with pytest.raises(TimeoutError, match="does not answer in time"):
                wire.receive(ours)
        else:
            assert wire.receive(ours) == (0, b"x")
        timer.join()
