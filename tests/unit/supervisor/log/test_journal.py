"""Which message goes where, in which form."""

import json
import re
import socket
import time
from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.settings.file.load import LEVELS, Level, Log
from scrun.supervisor.log.files import finish, open_file
from scrun.supervisor.log.journal import Journal, Shown

TIME = r'time="[^"]+" '


def lines(path: Path) -> list[str]:
    return [re.sub(TIME, "", line) for line in path.read_text().splitlines()]


def write_all(journal: Journal) -> None:
    for level in LEVELS[1:]:
        journal.write(level, f"one of {level}")
    journal.close()


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_lets_through_what_matters_as_much(tmp_path: Path, level: Level) -> None:
    write_all(Journal(str(tmp_path / "log"), Log(level=level), "c1"))
    assert len(lines(tmp_path / "log")) == LEVELS.index(level)


@pytest.mark.parametrize(
    ("level", "file_level", "in_log", "in_file"),
    [
        ("info", None, 3, 3),
        ("info", "debug", 3, 5),
        ("debug5", "error", 9, 2),
        ("info", "quiet", 3, 0),
    ],
)
async def test_the_file_has_its_own_level(
    tmp_path: Path, level: Level, file_level: Level | None, in_log: int, in_file: int
) -> None:
    file = tmp_path / "file"
    settings = Log(level, "text", str(file), file_level)
    opened = await open_file(settings)
    write_all(Journal(str(tmp_path / "log"), settings, "c1", file=opened))
    finish(10)
    assert len(lines(tmp_path / "log")) == in_log
    assert len(lines(file)) == in_file
    assert all('msg="container c1: one of ' in line for line in lines(file))


def test_names_of_levels_are_runcs(tmp_path: Path) -> None:
    write_all(Journal(str(tmp_path / "log"), Log(level="debug2"), "c1"))
    assert lines(tmp_path / "log") == [
        'level=fatal msg="one of fatal"',
        'level=error msg="one of error"',
        'level=info msg="one of info"',
        'level=info msg="one of verbose"',
        'level=debug msg="one of debug"',
        'level=debug msg="one of debug2"',
    ]


def test_many_lines(tmp_path: Path) -> None:
    text = 'Traceback:\n  File "x", line 1\nValueError: \udcff'
    for form in ("text", "json"):
        journal = Journal(str(tmp_path / form), Log(format=form), "c1")
        journal.write("error", text)
        journal.write("error", "")
        journal.close()
    assert lines(tmp_path / "text") == [
        'level=error msg="Traceback:"',
        'level=error msg="  File \\"x\\", line 1"',
        'level=error msg="ValueError: \\udcff"',
        'level=error msg=""',
    ]
    entries = [json.loads(line) for line in (tmp_path / "json").read_text().splitlines()]
    assert [entry["msg"] for entry in entries] == [text, ""]
    assert list(entries[0]) == ["level", "msg", "time"]


@pytest.mark.usefixtures("no_descriptor_stays")
async def test_a_file_that_cannot_be_opened() -> None:
    with pytest.raises(SettingsError, match=r"^log\.file: /nonexistent/x: No such file"):
        await open_file(Log(file="/nonexistent/x"))


def test_what_comes_after_the_end_is_dropped(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "log"), Log(), "c1")
    journal.close()
    journal.close()
    journal.write("error", "late")
    assert (tmp_path / "log").read_text() == ""


async def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    settings = Log(file="/dev/full")
    journal = Journal(str(tmp_path / "own"), settings, "c1", file=await open_file(settings))
    journal.write("error", "x")
    journal.close()
    finish(10)
    assert len(lines(tmp_path / "own")) == 1


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (Shown(), []),
        (Shown(stderr="error"), ["fatal", "error"]),
        (Shown(log="info"), ["fatal", "error", "info"]),
        (Shown(stderr="verbose", log="error"), ["fatal", "error", "info", "verbose"]),
    ],
)
def test_the_caller_hears_what_one_of_its_levels_lets_through(
    tmp_path: Path, shown: Shown, expected: list[str]
) -> None:
    heard: list[str] = []
    journal = Journal(str(tmp_path / "log"), Log(), "c1", shown)
    journal.write("error", "too early")
    journal.show_to(lambda level, _: heard.append(level))
    for level in LEVELS[1:]:
        journal.write(level, level)
    journal.show_to(None)
    journal.write("error", "too late")
    journal.close()
    assert heard == expected


@pytest.mark.parametrize("failure_in_file", [True, False])
async def test_what_create_writes_itself_is_there_once(
    tmp_path: Path, failure_in_file: bool
) -> None:
    heard: list[str] = []
    shown = Shown(stderr="debug5", failure_in_file=failure_in_file)
    settings = Log(file=str(tmp_path / "file"))
    journal = Journal(str(tmp_path / "log"), settings, "c1", shown, await open_file(settings))
    journal.show_to(lambda _, text: heard.append(text))
    journal.write("error", "the reason", reported=True)
    journal.close()
    finish(10)
    assert heard == []
    assert len(lines(tmp_path / "log")) == 1
    assert len(lines(tmp_path / "file")) == (0 if failure_in_file else 1)


def test_syslog_gets_its_level(tmp_path: Path) -> None:
    path = str(tmp_path / "dev-log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(path)
        daemon.setblocking(False)
        settings = Log(level="quiet", syslog_level="info", syslog=path)
        write_all(Journal(str(tmp_path / "log"), settings, "c1"))
        got = [daemon.recv(9000).decode() for _ in range(3)]
        with pytest.raises(BlockingIOError):
            daemon.recv(1)
    ends = [line.partition(": ")[2] for line in got]
    assert ends == [f"container c1: one of {level}" for level in ("fatal", "error", "info")]
    assert lines(tmp_path / "log") == []


def test_progress_has_a_line_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    journal = Journal(str(tmp_path / "log"), Log(), "c1")
    seen: list[str] = []
    say = journal.progress()
    say("before anybody looks")
    journal.show_live(seen.append)
    for second in range(25):
        now = 100.0 + second
        say(f"image: {second} of 24 MiB", second / 24)
    journal.close()
    assert len(seen) == 25
    assert seen[12] == " 50% [##########..........] image: 12 of 24 MiB"
    assert lines(tmp_path / "log") == [
        f'level=info msg="image: {second} of 24 MiB"' for second in (10, 20)
    ]
