"""The store of images, as commands open it."""

import os
from pathlib import Path

import pytest

from scrun.cli.parse import Parsed
from scrun.client.images import open_store
from scrun.client.progress import clear, show
from scrun.protocol.wire import LIVE


def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (settings := tmp_path / "scrun.toml").write_text(f'[images]\nstore = "{tmp_path}/store"\n')
    monkeypatch.setenv("SCRUN_CONFIG", str(settings))
    monkeypatch.setattr("scrun.core.progress.BETWEEN_LINES", 0.0)
    say = open_store(Parsed()).say
    say("x: 1 of 2 MiB", 0.5)
    say("")


def test_progress_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    opened(tmp_path, monkeypatch)
    assert capfd.readouterr().err == "scrun: x: 1 of 2 MiB\n"


def test_progress_at_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.isatty", lambda _: True)
    opened(tmp_path, monkeypatch)
    bar = "\r\x1b[K"
    assert capfd.readouterr().err == f" 50% [##########..........] x: 1 of 2 MiB{bar}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x" * 19, "x" * 19),
        ("x" * 20, "x" * 18 + "…"),
        ("\u6f22" * 10, "\u6f22" * 9 + "…"),  # each takes two columns
        ("a\x1b[2J\r\n", "a\\x1b[2J\\r\\n"),
    ],
)
def test_one_line_of_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    """What wraps could not be cleared."""
    monkeypatch.setattr("os.isatty", lambda _: True)
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((20, 24)))
    show(LIVE + text.encode(), Parsed())
    clear()
    assert capfd.readouterr().err == f"{shown}\r\x1b[K"


def test_a_terminal_that_can_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.isatty", lambda _: True)
    monkeypatch.setenv("TERM", "dumb")
    show(LIVE + b"it waits", Parsed())
    opened(tmp_path, monkeypatch)
    assert capfd.readouterr().err == "scrun: x: 1 of 2 MiB\n"
