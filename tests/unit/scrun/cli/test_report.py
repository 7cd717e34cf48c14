"""What engines and people read when a command fails."""

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.cli import syslog
from scrun.cli.failure import append, log_line, log_lines, report

NOON = 1767268800.0  # 2026-01-01T12:00:00Z
RFC3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)"


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def use(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield use
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., str]:
    def tell(text: str, log: str | None = None, log_format: str = "text") -> str:
        path = tmp_path / "stderr"
        with path.open("wb") as stderr:
            report(text, log=log, log_format=log_format, stderr=stderr.fileno())
        return path.read_text(encoding="utf-8")

    return tell


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("json", '{"level":"error","msg":"no \\"x\\"","time":"2026-01-01T12:00:00Z"}'),
        ("text", 'time="2026-01-01T12:00:00Z" level=error msg="no \\"x\\""'),
    ],
)
def test_a_line_is_as_runc_writes_it(zone: Callable[[str], None], form: str, line: str) -> None:
    zone("UTC")
    assert log_line("error", 'no "x"', NOON, form) == line


@pytest.mark.parametrize(
    ("name", "stamp"),
    [
        ("UTC", "2026-01-01T12:00:00Z"),
        ("CET-1", "2026-01-01T13:00:00+01:00"),
        ("IST-5:30", "2026-01-01T17:30:00+05:30"),
        ("NST3:30", "2026-01-01T08:30:00-03:30"),
    ],
)
def test_the_time_has_its_offset(zone: Callable[[str], None], name: str, stamp: str) -> None:
    zone(name)
    assert json.loads(log_line("info", "x", NOON, "json"))["time"] == stamp


@given(st.text())
def test_a_log_line_is_one_line_and_keeps_the_message(text: str) -> None:
    line = log_line("error", text, NOON, "json")
    assert "\n" not in line
    assert json.loads(line)["msg"] == text
    assert "\n" not in log_line("error", text, NOON, "text")


def test_as_text_each_line_is_an_entry_and_json_has_one(zone: Callable[[str], None]) -> None:
    zone("UTC")
    head = 'time="2026-01-01T12:00:00Z" level=debug msg='
    assert log_lines("debug", "a\n  b\n", NOON, "text") == f'{head}"a"\n{head}"  b"'
    assert log_lines("debug", "", NOON, "text") == f'{head}""'
    assert json.loads(log_lines("debug", "a\n  b\n", NOON, "json"))["msg"] == "a\n  b\n"


def test_more_than_errors(tmp_path: Path) -> None:
    append(f"file:{tmp_path}/log", "info", "it is there", "json", 0o600)
    assert json.loads((tmp_path / "log").read_text())["level"] == "info"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_the_real_runc_writes_the_same_shape(tmp_path: Path, told: Callable[..., str]) -> None:
    theirs, ours = tmp_path / "runc", tmp_path / "ours"
    for log_format in ("json", "text"):
        words = ["runc", "--root", str(tmp_path), "--log-format", log_format]
        subprocess.run([*words, "--log", theirs, "state", "c1"], check=False, capture_output=True)
        told("container does not exist", str(ours), log_format)
    masked = [re.sub(RFC3339, "TIME", path.read_text()) for path in (theirs, ours)]
    assert masked[0] == masked[1]


def test_stderr_and_the_log_get_one_line_each(tmp_path: Path, told: Callable[..., str]) -> None:
    log = tmp_path / "log.json"
    assert told("it failed", str(log), "json") == "scrun: it failed\n"
    # podman takes the whole file for one JSON object
    entry = json.loads(log.read_text())
    assert (entry["level"], entry["msg"]) == ("error", "it failed")
    assert re.fullmatch(RFC3339, entry["time"])


def test_the_log_is_appended_to(tmp_path: Path, told: Callable[..., str]) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    told("it failed", f"file:{log}")
    before, line = log.read_text().splitlines()
    assert before == "before"
    assert re.fullmatch(rf'time="{RFC3339}" level=error msg="it failed"', line)


@pytest.mark.parametrize("log", ["/nonexistent/log", "/", "", "a\0b", "syslog:x", "journald:x"])
def test_a_log_that_cannot_be_written_is_no_error(told: Callable[..., str], log: str) -> None:
    assert told("it failed", log) == "scrun: it failed\n"


@pytest.mark.parametrize(
    ("log", "name"), [("syslog:", "scrun"), ("syslog:x", "x"), ("journald:y", "y")]
)
def test_syslog(
    tmp_path: Path, told: Callable[..., str], monkeypatch: pytest.MonkeyPatch, log: str, name: str
) -> None:
    monkeypatch.setattr(syslog, "DEV_LOG", str(tmp_path / "dev-log"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(tmp_path / "dev-log"))
        daemon.settimeout(5)
        assert told("it failed", log) == "scrun: it failed\n"
        got = daemon.recv(9000).decode()
    assert got.startswith("<27>")
    assert got.endswith(f" {name}[{os.getpid()}]: it failed")


def test_a_named_pipe_that_nobody_reads_does_not_hang(
    tmp_path: Path, told: Callable[..., str]
) -> None:
    os.mkfifo(tmp_path / "log")
    assert told("it failed", str(tmp_path / "log")) == "scrun: it failed\n"


def test_a_closed_stderr_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    report("it failed", log=None, log_format="text", stderr=write)  # SIGPIPE is ignored
    os.close(write)
    report("it failed", log=None, log_format="text", stderr=write)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("two\nlines\n", "two; lines"),
        ("  a \r\n\n b", "a; b"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("no \udcff here", "no \\udcff here"),
        ("für 容器", "für 容器"),
        ("", ""),
    ],
)
def test_what_is_shown_is_one_printable_line(
    tmp_path: Path, told: Callable[..., str], text: str, line: str
) -> None:
    log = tmp_path / "log"
    assert told(text, str(log), "json") == f"scrun: {line}\n"
    assert json.loads(log.read_bytes())["msg"].isprintable() is ("\\" not in line)


@pytest.mark.covers("security text for a terminal in a name or an error")
@pytest.mark.covers("security names and messages")
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_message_moves_a_terminal_s_cursor(log_format: str) -> None:
    """json.dumps leaves what is above ASCII, with a second way to say ESC [ among it."""
    message = "\x1b]0;a\x07 \x9b31m \x7f \u202e ä€😀 \U000e0001"
    line = log_line("error", message, NOON, log_format)
    assert line.isprintable()
    assert "ä€😀" in line
    found = line if log_format == "json" else '{"msg":' + line.partition("msg=")[2] + "}"
    assert json.loads(found)["msg"] == message
