"""What a command makes of a supervisor that it cannot reach, or that hangs up."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scrun import _fast, wire
from scrun.record import Record, write_record

REPOSITORY = Path(__file__).parents[2]
_WITHOUT = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
import scrun._fast, scrun.commands.failure, scrun.commands.orphan
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os._exit(scrun._fast.run(sys.argv[2:]))
"""


@contextmanager
def listening(directory: Path, answers: list[bytes]) -> Iterator[list[bytes]]:
    """A supervisor that answers one call after the other, and what it was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "supervisor"))
        listener.listen()

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    if answer:
                        asked.append(connection.recv(4096))
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        thread.join(5)
        assert not thread.is_alive()


def record(root: Path) -> Path:
    directory = root / "c1"
    directory.mkdir()
    write_record(str(directory), Record(id="c1", status="running"))
    return directory


def test_one_that_hangs_up_is_asked_again(tmp_path: Path) -> None:
    with listening(tmp_path, [b"", b"", b"\0fine"]) as asked:
        assert _fast.ask(str(tmp_path), "supervisor", [b"state", b"c1"]) == (0, b"fine")
    assert asked == [wire.frame([b"state", b"c1"])]


@pytest.mark.parametrize("command", ["state", "start", "kill", "delete", "pause", "resume"])
def test_one_that_only_hangs_up_is_not_dead(
    tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """`state` would say that the container is stopped, and `kill` that there is nothing to do."""
    directory = record(tmp_path)
    with listening(directory, [b""] * 3):
        assert _fast.run(["--root", str(tmp_path), command, "c1"]) == 1
    out, err = capfd.readouterr()
    assert (out, err) == (
        "",
        "scrun: the supervisor: it hangs up without an answer; try again\n",
    )
    assert directory.is_dir()


@pytest.mark.parametrize("command", ["state", "start", "kill", "delete", "pause", "resume"])
def test_a_command_without_a_descriptor_knows_nothing(tmp_path: Path, command: str) -> None:
    directory = record(tmp_path)
    argv = [sys.executable, "-I", "-c", _WITHOUT, str(REPOSITORY), "--root", str(tmp_path)]
    with listening(directory, []):
        done = subprocess.run([*argv, command, "c1"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "scrun: Too many open files; it may not have more (ulimit -n)\n"
    assert os.listdir(tmp_path) == ["c1"]
