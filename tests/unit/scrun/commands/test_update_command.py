"""`scrun update`: what it sends to the supervisor, and what it refuses before."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scrun.cli.parse import parse
from scrun.commands import update
from scrun.core.errors import UsageError

Send = Callable[..., tuple[str, object]]


@pytest.fixture
def send(tmp_path: Path) -> Iterator[Send]:
    """Run the command before a supervisor of ours; return the time and the resources it got."""
    record = tmp_path / "root" / "box"
    record.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(record / "supervisor"))
    listener.listen()
    got: list[list[bytes]] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            length = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            got.append(connection.recv(length, socket.MSG_WAITALL).split(b"\0"))
            connection.sendall(b"\0")

    def call(*words: str) -> tuple[str, object]:
        argv = ["--root", str(tmp_path / "root"), "update", *words, "box"]
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        assert update.run(parse(argv)) == 0
        server.join(10)
        operation, container, limit, resources = got.pop()
        assert (operation, container) == (b"update", b"box")
        return limit.decode(), json.loads(resources)

    yield call
    listener.close()


def refused(tmp_path: Path, *words: str) -> str:
    argv = ["--root", str(tmp_path), "update", *words, "box"]
    with pytest.raises(UsageError) as caught:
        update.run(parse(argv))
    assert "\n" not in str(caught.value)
    return str(caught.value)


TIMES = [
    "1",
    "90",
    "0",
    "1:30",
    "90:00",
    "1:30:00",
    "100:00:00",
    "1-0",
    "1-12",
    "1-12:30",
    "1-12:30:15",
]


@pytest.mark.parametrize("limit", [*TIMES, "UNLIMITED", "unlimited", "INFINITE"])
def test_a_time(send: Send, limit: str) -> None:
    assert send("--time-limit", limit) == (limit, {})


@pytest.mark.parametrize(
    "limit",
    [
        " ",
        "x",
        "-1",
        "+5",
        "1h",
        "1:",
        ":30",
        "1:3",
        "1:30:",
        "1:2:3:4",
        "1-",
        "-12",
        "1-12:",
        "1 2",
        "12345678",
        "٣",
        "1=2",
        "1 Partition=x",
        "UNLIMITEDX",
    ],
)
def test_no_time(tmp_path: Path, limit: str) -> None:
    argv = ["--root", str(tmp_path), "update", f"--time-limit={limit}", "box"]
    with pytest.raises(UsageError, match=r"^--time-limit .* expected, as for salloc --time$"):
        update.run(parse(argv))


def test_resources_of_a_file_and_of_options_together(send: Send, tmp_path: Path) -> None:
    file = tmp_path / "resources.json"
    file.write_text(
        json.dumps({"memory": {"limit": 1, "swap": 2}, "pids": {"limit": 3}, "cpu": None})
    )
    assert send("--resources", str(file)) == ("", json.loads(file.read_text()))
    found = send("--resources", str(file), "--memory", "1k", "--cpu-quota", "5", "--time-limit=7")
    resources = {"memory": {"limit": 1024, "swap": 2}, "pids": {"limit": 3}, "cpu": {"quota": 5}}
    assert found == ("7", resources)


def test_an_empty_object_changes_nothing(send: Send, tmp_path: Path) -> None:
    (tmp_path / "r").write_text("{}")
    assert send("--resources", str(tmp_path / "r")) == ("", {})


def test_resources_from_standard_input(send: Send) -> None:
    readable, writable = os.pipe()
    kept = os.dup(0)
    try:
        os.write(writable, b'{"memory": {"limit": 5}}')
        os.close(writable)
        os.dup2(readable, 0)
        assert send("--resources", "-") == ("", {"memory": {"limit": 5}})
        os.fstat(0)  # it is left open
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(readable)


def test_a_closed_standard_input(tmp_path: Path) -> None:
    kept = os.dup(0)
    os.close(0)
    try:
        assert refused(tmp_path, "--resources", "-") == "--resources -: Bad file descriptor"
    finally:
        os.dup2(kept, 0)
        os.close(kept)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b'{"memory": 1}{', "is not JSON"),
        (b"\xff\xfe\xff", "is not JSON"),
        (b"[" * 5_000, "is not JSON"),
        (b"[" * 100_000, "has more than 10000 values"),
        (b'{"memory": ' + b"1" * 5000 + b"}", "is not JSON"),
        (b'{"memory": {"limit": 4E7050}}', "is not JSON: 4E7050 is too large"),
        (b'{"memory": {"limit": -Infinity}}', "is not JSON: -Infinity is not a number"),
        (b"[]", "is not an object: linux.resources is expected"),
        (b"null", "is not an object: linux.resources is expected"),
        (b"5", "is not an object: linux.resources is expected"),
        (b'{"a": "' + b"x" * (1 << 20) + b'"}', "is larger than 1 MiB"),
    ],
    ids=range(13),
)
def test_a_file_that_is_no_resources(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "r.json"
    file.write_bytes(content)
    text = refused(tmp_path, "--resources", str(file))
    assert text.startswith(f"--resources {file}: {reason}")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for name, reason in (("none", "No such file or directory"), (".", "Is a directory")):
        path = str(tmp_path / name)
        assert refused(tmp_path, "--resources", path) == f"--resources {path}: {reason}"


def test_nothing_asked_for(tmp_path: Path) -> None:
    assert refused(tmp_path).startswith("update needs a limit to change")
