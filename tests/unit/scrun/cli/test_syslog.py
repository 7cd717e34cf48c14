"""Messages as a daemon gets them, and a daemon that does not do its part."""

import os
import re
import socket
import time
from pathlib import Path

import pytest

from scrun.cli.syslog import Syslog, packets
from scrun.settings.file.load import Level

NOON = time.struct_time((2026, 1, 5, 12, 0, 9, 0, 5, 0))


@pytest.mark.parametrize(
    ("level", "priority"),
    [("fatal", 26), ("error", 27), ("info", 30), ("verbose", 30), ("debug", 31), ("debug5", 31)],
)
def test_the_form_is_that_of_rfc_3164(level: Level, priority: int) -> None:
    line = f"<{priority}>Jan  5 12:00:09 scrun[42]: it failed"
    assert packets(level, "it failed", NOON, "scrun[42]") == [line.encode()]


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("two\nlines", [b": two", b": lines"]),
        ("", [b": "]),
        ("\x1b[2J\0", [b": \\x1b[2J\\x00"]),
        ("no \udcff", [b": no \\udcff"]),
        ("für 容器", [": für 容器".encode()]),
    ],
)
def test_each_line_is_one_printable_message(text: str, ends: list[bytes]) -> None:
    assert [packet[23:] for packet in packets("info", text, NOON, "scrun[4]")] == [
        b"un[4]" + end for end in ends
    ]


def test_a_long_message_is_cut() -> None:
    assert [len(packet) for packet in packets("info", "x" * 100000, NOON, "scrun[4]")] == [8192]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "dev-log")


def listener(path: str, kind: socket.SocketKind) -> socket.socket:
    daemon = socket.socket(socket.AF_UNIX, kind)
    daemon.settimeout(5)
    daemon.bind(path)
    if kind == socket.SOCK_STREAM:
        daemon.listen(1)
    return daemon


def test_datagrams(path: str) -> None:
    syslog = Syslog(path)
    with listener(path, socket.SOCK_DGRAM) as daemon:
        syslog.send("error", "it failed")
        got = daemon.recv(9000).decode()
    assert re.fullmatch(
        rf"<27>[A-Z][a-z][a-z] [ 123]\d \d\d:\d\d:\d\d scrun\[{os.getpid()}\]: it failed", got
    )


def test_a_stream(path: str) -> None:
    syslog = Syslog(path)
    with listener(path, socket.SOCK_STREAM) as daemon:
        syslog.send("error", "one\ntwo")
        with daemon.accept()[0] as connection:
            syslog.close()
            got = b"".join(iter(lambda: connection.recv(9000), b""))
    assert [line[-5:] for line in got.split(b"\0")] == [b": one", b": two", b""]


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_the_daemon_may_come_and_go(path: str, kind: socket.SocketKind) -> None:
    syslog = Syslog(path)
    syslog.send("info", "nobody hears this")
    for _ in range(2):
        with listener(path, kind) as daemon:
            syslog.send("info", "lost, perhaps")  # a stream notices only now that it is gone
            syslog.send("info", "heard")
            if kind == socket.SOCK_STREAM:
                daemon, _ = daemon.accept()
            with daemon:
                got = daemon.recv(9000)
                while b"heard" not in got:
                    got = daemon.recv(9000)
        os.unlink(path)
    syslog.close()


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_daemon_that_does_not_read_is_not_waited_for(path: str, kind: socket.SocketKind) -> None:
    syslog = Syslog(path)
    with listener(path, kind):
        begun = time.monotonic()
        for _ in range(3000):
            syslog.send("info", "x" * 1000)
        assert time.monotonic() - begun < 5
    syslog.close()


@pytest.mark.parametrize("place", ["/nonexistent/log", "/", "/" + "x" * 200, "/dev/null"])
def test_no_daemon_is_no_error(place: str) -> None:
    syslog = Syslog(place)
    syslog.send("info", "x")
    syslog.close()
