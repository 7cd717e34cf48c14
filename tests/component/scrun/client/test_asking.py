"""What a command makes of a supervisor that it cannot reach, or that hangs up."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scrun import main as program
from scrun.cli.parse import Parsed, parse
from scrun.client import reach
from scrun.client.reach import was_deleted
from scrun.client.supervisor_name import supervisor_name
from scrun.client.supervisors import Supervisor
from scrun.commands import list as listed
from scrun.commands import pool, supervisor
from scrun.core.errors import SupervisorLost
from scrun.model.record import Record, write_record
from scrun.protocol import wire
from scrun.protocol.wire import ask
from tests import CHECKOUT
from tests.harness.program import run_program

_RUN = """
import os, sys
sys.path.insert(0, sys.argv[1])
import scrun.main
os._exit(scrun.main.run(sys.argv[2:]))
"""

_WITHOUT = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
import scrun.main, scrun.cli.failure, scrun.client.reach
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os._exit(scrun.main.run(sys.argv[2:]))
"""


@contextmanager
def listening(
    directory: Path, answers: list[bytes], name: str = "supervisor"
) -> Iterator[list[bytes]]:
    """A supervisor that answers one call after the other, and what it was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / name))
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


@pytest.mark.parametrize("status", [0, 1])
def test_what_a_successor_has_of_a_create_without_answer(tmp_path: Path, status: int) -> None:
    directory = record(tmp_path)
    with listening(directory, [b"", bytes([status])]) as asked:
        assert was_deleted(Parsed(), str(directory)) is (status == 0)
    assert [b"delete" in request for request in asked] == [True]


@pytest.mark.parametrize("times", [1, 3, 100])
def test_what_a_create_without_answer_has_left_is_deleted_by_another_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """That may be killed as well."""
    directory = record(tmp_path)
    started: list[list[bytes]] = []

    def delete(parsed: Parsed, path: str, fields: list[bytes]) -> tuple[int, bytes]:
        started.append(fields)
        if len(started) < times:
            raise SupervisorLost("the supervisor does not start")
        shutil.rmtree(path)
        return 0, b""

    monkeypatch.setattr(reach, "delete", delete)
    assert was_deleted(Parsed(), str(directory)) is (times < 100)
    assert started == [[b"delete", b"c1", b"1"]] * min(times, 5)


def test_one_that_hangs_up_is_asked_again(tmp_path: Path) -> None:
    with listening(tmp_path, [b"", b"", b"\0fine"]) as asked:
        assert ask(str(tmp_path), "supervisor", [b"state", b"c1"]) == (0, b"fine")
    assert asked == [wire.frame([b"state", b"c1"])]


@pytest.mark.parametrize("operation", ["start", "pause", "resume"])
def test_a_successor_is_told_that_another_one_was_asked_before(
    tmp_path: Path, operation: str
) -> None:
    fields = [operation.encode(), b"c1"]
    with listening(tmp_path, [b"", b"\0"]) as asked:
        assert ask(str(tmp_path), "supervisor", fields) == (0, b"")
    assert asked == [wire.frame([*fields, b"1"])]


@contextmanager
def deleting(directory: Path, answer: bytes) -> Iterator[None]:
    """Listen for one request, remove the record, and answer."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "supervisor"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                shutil.rmtree(directory)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(5)


@pytest.mark.parametrize(("command", "status"), [("delete", 0), ("kill", 1), ("start", 1)])
def test_one_that_dies_before_it_says_that_the_container_is_deleted(
    tmp_path: Path, command: str, status: int
) -> None:
    with deleting(record(tmp_path), b""):
        assert program.run(["--root", str(tmp_path), command, "c1"]) == status


def test_one_that_has_started_a_container_which_is_deleted_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An engine deletes a short one as soon as it has ended."""
    with deleting(record(tmp_path), b"\0"):
        assert program.run(["--root", str(tmp_path), "start", "c1"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["state", "start", "kill", "delete", "pause", "resume"])
def test_one_that_only_hangs_up_is_not_dead(
    tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """`state` would say that the container is stopped, and `kill` that there is nothing to do."""
    directory = record(tmp_path)
    with listening(directory, [b""] * 3):
        assert program.run(["--root", str(tmp_path), command, "c1"]) == 1
    out, err = capfd.readouterr()
    assert (out, err) == (
        "",
        "scrun: the supervisor: it hangs up without an answer; try again\n",
    )
    assert directory.is_dir()


@pytest.mark.parametrize("command", ["state", "start", "kill", "delete", "pause", "resume"])
def test_a_command_without_a_descriptor_knows_nothing(tmp_path: Path, command: str) -> None:
    directory = record(tmp_path)
    argv = [sys.executable, "-I", "-c", _WITHOUT, str(CHECKOUT), "--root", str(tmp_path)]
    with listening(directory, []):
        done = subprocess.run([*argv, command, "c1"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "scrun: Too many open files; it may not have more (ulimit -n)\n"
    assert os.listdir(tmp_path) == ["c1"]


def at_a_terminal(*argv: str) -> bytes:
    """What scrun writes to a terminal."""
    master, slave = os.openpty()
    command = [sys.executable, "-c", "from scrun.main import main; main()", *argv]
    with open(master, "rb", buffering=0) as screen:
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        said = b""
        try:
            while piece := screen.read(65536):
                said += piece
        except OSError:
            pass  # hung up
        process.wait(20)
    return said


NASTY = "a\x1b[2Jb\x9b31mc\u202ed\x7fe".encode() + b"\x9bf\tg\n"
SHOWN = rb"a\x1b[2Jb\x9b31mc\u202ed\x7fe\x9bf"


def test_no_answer_moves_a_terminal_s_cursor(tmp_path: Path) -> None:
    directory = record(tmp_path)
    for words in (["state", "c1"], ["ps", "c1"], ["events", "--stats", "c1"]):
        with listening(directory, [b"\0" + NASTY]):
            assert at_a_terminal("--root", str(tmp_path), *words).startswith(SHOWN), words
        (directory / "supervisor").unlink()


def test_no_message_of_the_log_moves_a_terminal_s_cursor(tmp_path: Path) -> None:
    directory = record(tmp_path)
    (directory / "log").write_bytes(NASTY)
    (directory / "output").write_bytes(NASTY)
    root = ("--root", str(tmp_path))
    assert at_a_terminal(*root, "logs", "--messages", "c1").startswith(SHOWN)
    assert b"\x1b[2J" in at_a_terminal(*root, "logs", "c1")  # the container's, as podman has it
    os.chown(directory / "output", 12345, 12345)
    assert at_a_terminal(*root, "logs", "c1").startswith(SHOWN)


def test_logs_follow_no_link(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The record may be exchanged for another directory, and a log for another file."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (elsewhere / "log").write_text("secret")
    (root / "c1").symlink_to(elsewhere)
    directory = root / "c2"
    directory.mkdir()
    (directory / "log").symlink_to(elsewhere / "log")
    for container in ("c1", "c2"):
        assert program.run(["--root", str(root), "logs", "--messages", container]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "container c1 does not exist" in err
    os.mkfifo(directory / "output")
    assert program.run(["--root", str(root), "logs", "c2"]) == 1
    assert "is not a regular file" in capfd.readouterr().err


PRINTING = {
    "state": ["state", "c1"],
    "list": ["list"],
    "list -q": ["list", "--quiet"],
    "list as JSON": ["list", "--format", "json"],
    "logs": ["logs", "c1"],
    "messages": ["logs", "--messages", "c1"],
    "features": ["features"],
    "version": ["--version"],
    "help": ["help"],
    "completion": ["completion", "bash"],
    "plugins": ["plugins"],
    "doctor": ["doctor", "--no-job", "--format", "json"],
}


@pytest.fixture
def root_with_one(tmp_path: Path) -> Path:
    directory = record(tmp_path)
    for name in ("log", "output"):
        (directory / name).write_text("text\n" * 100_000)
    return tmp_path


def printing(root: Path, words: list[str], stdout: int) -> tuple[int, str]:
    command = [sys.executable, "-c", "from scrun.main import main; main()", "--root", str(root)]
    done = subprocess.run(
        [*command, *words], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
        timeout=60, text=True,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", PRINTING)
def test_output_that_cannot_be_written_is_an_error(root_with_one: Path, command: str) -> None:
    with open("/dev/full", "wb") as full:
        status, said = printing(root_with_one, PRINTING[command], full.fileno())
    assert (status, said) == (
        1,
        "scrun: standard output: No space left on device; make space there\n",
    )


@pytest.mark.parametrize("command", ["state", "logs", "help", "doctor"])
def test_who_has_read_enough_is_told_nothing(root_with_one: Path, command: str) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    try:
        status, said = printing(root_with_one, PRINTING[command], writable)
    finally:
        os.close(writable)
    assert said == ""
    assert status == 0 or command == "doctor"


def test_a_pipe_that_others_made_nonblocking_gets_it_all(root_with_one: Path) -> None:
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    words = [sys.executable, "-c", "from scrun.main import main; main()", "--root"]
    process = subprocess.Popen([*words, str(root_with_one), "logs", "c1"], stdout=writable)
    os.close(writable)
    with open(readable, "rb") as pipe:
        assert pipe.read() == b"text\n" * 100_000
    assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("tail", "said"),
    [("0", ""), ("1", "line 9999\n"), ("3", "line 9997\nline 9998\nline 9999\n")],
)
def test_the_last_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], tail: str, said: str
) -> None:
    directory = record(tmp_path)
    (directory / "output.1").write_text("".join(f"line {n}\n" for n in range(9998)))
    (directory / "output").write_text("line 9998\nline 9999\n")
    assert program.run(["--root", str(tmp_path), "logs", "--tail", tail, "c1"]) == 0
    assert capfd.readouterr().out == said
    assert program.run(["--root", str(tmp_path), "logs", "-n", "20000", "c1"]) == 0
    assert capfd.readouterr().out == "".join(f"line {n}\n" for n in range(10000))


def test_a_tail_that_is_no_number(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (record(tmp_path) / "output").write_text("a\n")
    assert program.run(["--root", str(tmp_path), "logs", "--tail", "-1", "c1"]) == 1
    assert "is not a number of lines" in capfd.readouterr().err


@pytest.mark.parametrize("words", [("c1:/x", "--", "b"), ("--", "c1:/x", "b"), ("c1:/x", "b")])
def test_what_cp_asks_for(words: tuple[str, ...], tmp_path: Path) -> None:
    """Its operands, wherever the options end."""
    root = ("--root", str(tmp_path))
    with listening(record(tmp_path), [b"\1no"]) as asked:
        done = run_program([sys.executable, "-c", _RUN, str(CHECKOUT), *root, "cp", *words])
    assert "scrun: no\n" in done.stderr
    fields = os.fsdecode(asked[0][4:]).split("\0")
    parsed = parse(fields[5 : 5 + int(fields[4])])
    assert (parsed.operands, parsed.text("root")) == (["c1:/x", "-"], str(tmp_path))


def test_a_time_that_is_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("supervisor", "stop", "--all", "--time", "\u00b2")
    assert program.run(["--root", str(tmp_path), *words]) == 1
    assert "is not a duration; use seconds, 90s or 5m" in capfd.readouterr().err


SAID = """\
time="2026-05-01T12:00:00+02:00" level=info msg="one"
time="2026-05-01T10:00:01Z" level=info msg="time=\\"2030-01-01T00:00:00Z\\""
{"level":"info","msg":"three","time":"2026-05-01T12:00:02+02:00"}
no time
{"level":"info","msg":"\\"time\\":\\"2000-01-01T00:00:00Z\\"","time":"2026-05-01T10:00:03Z"}
"""


@pytest.mark.parametrize(
    ("since", "lines"),
    [("1777629600", 5), ("2026-05-01T10:00:01.9Z", 4), ("2026-05-01T10:00:02+00:00", 3),
     ("2026-05-01T12:00:03+02:00", 1), ("1777629604", 0), ("2000h", 5)],
)  # fmt: skip
def test_messages_since(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    since: str,
    lines: int,
) -> None:
    monkeypatch.setattr("time.time", lambda: 1777629603.5)
    first, *others = SAID.splitlines(keepends=True)
    directory, root = record(tmp_path), ["--root", str(tmp_path), "logs"]
    (directory / "log.1").write_text(first)
    (directory / "log").write_text("".join(others))
    expected = SAID.splitlines(keepends=True)[5 - lines :]
    assert program.run([*root, "--messages", "--since", since, "c1"]) == 0
    assert capfd.readouterr().out == "".join(expected)
    assert program.run([*root, "--messages", "--since", since, "--tail", "2", "c1"]) == 0
    assert capfd.readouterr().out == "".join(expected[-2:])
    (tmp_path / "@supervisor.log").write_text(SAID)
    assert program.run([*root, "--supervisor", "--since", since]) == 0
    assert capfd.readouterr().out == "".join(expected)


@pytest.mark.parametrize("since", ["", "yesterday", "-5", "10", "12:00", "5x", "2026-13-01"])
def test_since_when(tmp_path: Path, capfd: pytest.CaptureFixture[str], since: str) -> None:
    """Output that has no times may be of any time; a number is seconds since 1970."""
    (record(tmp_path) / "output").write_text("a\n")
    status = program.run(["--root", str(tmp_path), "logs", "--since", since, "c1"])
    said = capfd.readouterr()
    assert (status, said.out) == ((0, "a\n") if since == "10" else (1, ""))
    assert since == "10" or "such as 2026-05-01T12:00:00" in said.err


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("shell ab", "abcd"),
        ("shell ab ab", "abcd ab"),
        ("exec -t --env ab ab true ab", "exec -t --env ab abcd true ab"),
        ("exec --tty -- ab true", "exec --tty -- abcd true"),
    ],
)
def test_a_person_at_a_terminal_may_give_the_beginning_of_an_id(
    tmp_path: Path, typed: str, sent: str
) -> None:
    directory = tmp_path / "abcd"
    record(tmp_path).rename(directory)
    with listening(directory, [b"\1it was asked"]) as asked:
        assert b"it was asked" in at_a_terminal("--root", str(tmp_path), *typed.split())
    assert asked[0].endswith(f" {sent}".replace(" ", "\0").encode())


@pytest.mark.parametrize("words", ["exec ab true", "exec --tty ab true", "shell ab"])
def test_elsewhere_an_id_is_whole(tmp_path: Path, words: str) -> None:
    """Scripts and engines mean the one that they name, also when it is gone."""
    record(tmp_path).rename(tmp_path / "abcd")
    command = [sys.executable, "-c", "from scrun.main import main; main()"]
    done = run_program([*command, "--root", str(tmp_path), *words.split()])
    assert (done.returncode, done.stdout) == (1, "")
    assert "container ab does not exist" in done.stderr


def test_people_may_give_the_beginning_of_an_id(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("abc1", "abc2", "abd", "ab"):
        (tmp_path / name).mkdir()
        write_record(str(tmp_path / name), Record(id=name, status="running"))
        (tmp_path / name / "output").write_text(f"of {name}\n")
    for given, said in (("abd", "of abd\n"), ("abc1", "of abc1\n"), ("ab", "of ab\n")):
        assert program.run(["--root", str(tmp_path), "logs", given]) == 0
        assert capfd.readouterr().out == said
    (tmp_path / "ab" / "output").unlink()
    (tmp_path / "ab" / "state.json").unlink()
    (tmp_path / "ab").rmdir()
    assert program.run(["--root", str(tmp_path), "logs", "abc"]) == 1
    assert "is ambiguous: abc1, abc2" in capfd.readouterr().err
    assert program.run(["--root", str(tmp_path), "logs", "abd"[:3]]) == 0
    capfd.readouterr()
    # what engines call takes whole ids only
    for command in ("state", "kill", "delete", "start"):
        assert program.run(["--root", str(tmp_path), command, "abd"[:2] + "d0"]) == 1
        assert "does not exist" in capfd.readouterr().err
        assert program.run(["--root", str(tmp_path), command, "abc"]) == 1
        assert "does not exist" in capfd.readouterr().err


def test_a_list_fits_the_terminal(tmp_path: Path) -> None:
    name = "0123456789abcdef" * 4
    (tmp_path / name).mkdir()
    stopped = {"org.scrun.reason": "cancelled", "org.scrun.message": "a very long reason " * 20}
    write_record(
        str(tmp_path / name),
        Record(id=name, status="stopped", bundle="/b" * 100, annotations=stopped),
    )
    lines = at_a_terminal("--root", str(tmp_path), "list").decode().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["ID", "STATUS", "JOB", "NODES", "CREATED", "INFO"]
    assert lines[1].split()[:2] == ["0123456789ab", "stopped"]
    assert lines[1].endswith("…")
    wide = at_a_terminal("--root", str(tmp_path), "list", "--wide").decode()
    assert name in wide
    assert "/b" * 100 in wide


@pytest.mark.parametrize("words", [("pool", "list"), ("pool", "start", "a"), ("list", "--jobs")])
def test_what_a_supervisor_that_does_not_answer_has_is_not_known(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It is not taken for nothing; one that has died has nothing."""
    for module in (pool, listed):
        monkeypatch.setattr(module, "ANSWERS", 1)
    with socket.socket(socket.AF_UNIX) as dead, listening(tmp_path, [b"\0[]"] * 2, "@user-c"):
        dead.bind(str(tmp_path / "@user-b"))
        if "start" not in words:
            assert program.run(["--root", str(tmp_path), *words]) == 0
            assert capfd.readouterr().err == ""
        else:
            assert pool.nodes_of_pools(str(tmp_path)) == []
        with socket.socket(socket.AF_UNIX) as hanging:
            hanging.bind(str(tmp_path / "@user-a"))
            hanging.listen()
            assert program.run(["--root", str(tmp_path), *words]) == 1
    assert capfd.readouterr().err == "scrun: the supervisor: does not answer in time; try again\n"


def test_top_without_the_pools_of_a_supervisor_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pool, "ANSWERS", 1)
    write_record(str(record(tmp_path)), Record(id="c1", status="stopped"))
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(tmp_path / "@user-a"))
        hanging.listen()
        assert program.run(["--root", str(tmp_path), "top", "--once"]) == 0
    told = capfd.readouterr()
    assert told.out.splitlines()[1].split()[:3] == ["c1", "-", "stopped"]
    assert "does not answer" in told.err


def test_supervisors_that_have_ended_since_they_were_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to restart: another process may even have the number of one."""
    with subprocess.Popen("true") as ended:
        pass
    parsed = parse(["--root", str(tmp_path), "supervisor", "restart"])
    name = supervisor_name("user", parsed)
    found = [Supervisor(str(tmp_path), name, pid, []) for pid in (ended.pid, os.getpid())]
    monkeypatch.setattr(supervisor, "supervisors", lambda root: found)
    assert supervisor.run(parsed) == 0
    assert list(tmp_path.iterdir()) == []
