"""The store of images, as commands open it."""

from pathlib import Path

import pytest

from scrun.cli.parse import Parsed
from scrun.client.images import open_store


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
