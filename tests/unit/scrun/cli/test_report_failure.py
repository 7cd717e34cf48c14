"""Where the error that a command ends with is written."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scrun.cli.failure import explain, explain_end, report_failure
from scrun.cli.parse import Parsed, parse
from scrun.core.errors import ScrunError, StateError, UnknownContainer, UsageError

Explain = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "scrun.toml"
    path.write_text("")
    monkeypatch.setenv("SCRUN_CONFIG", str(path))
    monkeypatch.delenv("SCRUN_LOG_FILE", raising=False)
    return path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCRUN_LOG_FILE", str(tmp_path / "file"))
    return tmp_path / "file"


def fault() -> Exception:
    try:
        return [][0]
    except IndexError as error:
        return error


def messages(path: Path) -> list[tuple[str, str]]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [(entry["level"], entry["msg"]) for entry in entries]


def test_one_line_and_no_more(capfd: pytest.CaptureFixture[str]) -> None:
    assert explain(UnknownContainer("no such container"), parse(["--debug", "state", "c1"])) == 1
    assert capfd.readouterr().err == "scrun: no such container\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            fault(),
            "internal error: IndexError: list index out of range; run it again with --debug",
        ),
        (FileNotFoundError(2, "No such file", "/x"), "/x: No such file"),
    ],
)
def test_a_traceback_only_with_debug_and_in_the_log(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, error: Exception, text: str
) -> None:
    log = tmp_path / "log"
    words = ["--log", str(log), "--log-format", "json"]
    explain(error, parse([*words, "state", "c1"]))
    assert messages(log) == [("error", text)]
    log.unlink()
    explain(error, parse([*words, "--debug", "state", "c1"]))
    (level, traceback), last = messages(log)
    assert level == "debug"
    assert type(error).__name__ in traceback
    assert last == ("error", text)
    assert capfd.readouterr().err == f"scrun: {text}\n" * 2


def test_a_traceback_without_a_log(capfd: pytest.CaptureFixture[str]) -> None:
    explain(fault(), parse(["--debug", "state", "c1"]))
    *traceback, last = capfd.readouterr().err.splitlines()
    assert all(line.startswith("scrun: debug: ") for line in traceback)
    assert "IndexError" in traceback[-1]
    assert last.startswith("scrun: internal error: IndexError")


def test_a_command_line_without_sense_reaches_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(UsageError) as wrong:
        parse(["--log", str(log), "--log-format", "json", "--nonsense"])
    explain(wrong.value, None)
    ((_, text),) = messages(log)
    assert text.startswith("unknown option '--nonsense'")


def test_the_file_of_the_environment(file: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for words in (
        ["--log-format", "json", "state", "c1"],
        ["--log-format", "json", "--debug", "kill", "c1"],
    ):
        explain(UnknownContainer("there\nis none"), parse(words))
    explain(UsageError("no sense"), None)
    report_failure(b"refused", 1, parse(["--log", str(log), "--log-format", "json", "start", "c"]))
    first, second, third, fourth = file.read_text().splitlines()
    assert json.loads(first)["msg"] == "container c1: there; is none"
    assert json.loads(second)["msg"] == "container c1: there; is none"
    assert third.endswith(' level=error msg="no sense"')
    assert fourth.endswith(' level=error msg="container c: refused"')
    assert messages(log) == [("error", "refused")]
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "variables", "written"),
    [
        ("", {}, "text"),
        ('[log]\nformat = "json"', {}, "json"),
        ('[log]\nlevel = "quiet"', {}, ""),
        ('[log]\nfile_level = "fatal"', {}, ""),
        ("", {"SCRUN_FILE_DEBUG": "quiet"}, ""),
        ('[log]\nlevel = "quiet"', {"SCRUN_FILE_DEBUG": "2"}, "text"),
        ("no sense", {}, "text"),
        ("", {"SCRUN_FILE_DEBUG": "no sense"}, "text"),
        ("", {"SCRUN_LOG_FILE": ""}, ""),
        ("", {"SCRUN_LOG_FILE": "relative"}, ""),
    ],
)
def test_the_settings_hold_for_it(
    settings: Path, file: Path, monkeypatch: pytest.MonkeyPatch,
    text: str, variables: dict[str, str], written: str,
) -> None:  # fmt: skip
    settings.write_text(text)
    monkeypatch.chdir(file.parent)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    explain(ScrunError("failed"), parse(["state", "c1"]))
    content = file.read_text() if file.exists() else ""
    assert {"": "", "t": "text", "{": "json"}[content[:1]] == written
    assert not os.path.exists("relative")


def test_a_file_that_cannot_be_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCRUN_LOG_FILE", "/nonexistent/file")
    assert explain(ScrunError("failed"), Parsed()) == 1
    assert capfd.readouterr().err == "scrun: failed\n"


def test_an_error_with_half_a_character(capfd: pytest.CaptureFixture[str]) -> None:
    """JSON can have one, in a key that the error names; no encoding can."""
    assert explain(UsageError("\ud800 \udcff: no"), Parsed()) == 1
    assert capfd.readouterr().err == "scrun: ? ?: no\n"


def test_an_error_about_a_long_name(capfd: pytest.CaptureFixture[str]) -> None:
    explain(OSError(36, "File name too long", "/x" * 100_000), Parsed())
    said = capfd.readouterr().err
    assert said.endswith("/x: File name too long\n")
    assert len(said) < 2100


def test_what_ends_a_program(capfd: pytest.CaptureFixture[str]) -> None:
    """Event loops put errors in groups; an interrupt needs no words."""
    wrapped = BaseExceptionGroup("", [BaseExceptionGroup("", [KeyboardInterrupt()])])
    assert explain_end(wrapped, None) == explain_end(KeyboardInterrupt(), None) == 130
    assert capfd.readouterr().err == ""
    assert explain_end(ExceptionGroup("", [StateError("it is not")]), None) == 1
    assert capfd.readouterr().err == "scrun: it is not\n"
    with pytest.raises(SystemExit):
        explain_end(SystemExit(3), None)
