"""What `root` and `group` are is remembered, until something about the files has changed."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scrun.core.version import VERSION
from scrun.settings.file import sources
from scrun.settings.file.load import load_and_remember
from scrun.settings.file.sources import recall

_FRESH = 200_000_000
"""Nanoseconds."""

pytestmark = pytest.mark.by_root  # whose default root directory can be chosen, below


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file that is old enough; what is remembered lies beside it."""
    monkeypatch.setattr(sources, "default_root", lambda env: str(tmp_path / "root"))
    monkeypatch.setattr(sources, "_FRESH", _FRESH)  # else each test would wait for a second
    path = tmp_path / "scrun.toml"
    path.write_text('root = "/r"\ngroup = "pod"\n')
    _let_age(path)
    return path


def _let_age(path: Path) -> None:
    """Wait until its time of change, which nobody can set, is old enough."""
    while time.time_ns() - path.stat().st_ctime_ns < _FRESH:
        time.sleep(0.01)


def test_it_is_remembered(settings: Path) -> None:
    env = {"SCRUN_CONFIG": str(settings)}
    assert recall(env) is None
    assert load_and_remember(env, None) == {"root": "/r", "group": "pod"}
    assert recall(env) == {"root": "/r", "group": "pod"}
    assert recall({}, str(settings)) == {"root": "/r", "group": "pod"}
    assert recall({}) is None
    assert recall({}, f"{settings}.other") is None


def _rewrite(path: Path) -> None:
    status = path.stat()
    path.write_text('root = "/x"\ngroup = "pod"\n')  # as long as before
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace(path: Path) -> None:
    (path.parent / "new").write_text(path.read_text())
    (path.parent / "new").rename(path)


@pytest.mark.parametrize(
    "change", [Path.unlink, _rewrite, _replace, lambda path: path.chmod(0o666)]
)
def test_any_change_counts(settings: Path, change: Callable[[Path], None]) -> None:
    load_and_remember({}, str(settings))
    assert recall({}, str(settings)) is not None
    change(settings)
    assert recall({}, str(settings)) is None


def test_a_file_that_appears_counts(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = settings.with_name("system.toml")
    monkeypatch.setattr(sources, "SYSTEM_FILE", str(missing))
    load_and_remember({}, None)
    assert recall({}) == {"group": "user"}
    missing.touch()
    assert recall({}) is None


def test_a_file_of_this_moment_is_not_remembered(settings: Path) -> None:
    settings.write_text('root = "/y"\n')
    assert load_and_remember({}, str(settings)) == {"root": "/y", "group": "user"}
    assert recall({}, str(settings)) is None


def test_what_another_could_have_written_is_not_believed(settings: Path) -> None:
    load_and_remember({}, str(settings))
    (found,) = (settings.parent / "root").iterdir()
    root = found.parent
    for path, mode, owner in (
        (found, 0o666, 0),
        (found, 0o600, 12345),
        (root, 0o777, 0),
        (root, 0o700, 12345),
    ):
        before = path.stat().st_mode & 0o777
        path.chmod(mode)
        os.chown(path, owner, -1)
        assert recall({}, str(settings)) is None
        path.chmod(before)
        os.chown(path, 0, -1)
        assert recall({}, str(settings)) is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.replace(VERSION.encode(), b"0.0.1"),
        lambda content: content[:-1],
        lambda content: content + b"/another\0-\0",
        lambda content: content.replace(b"/scrun.toml", b"/others.toml"),
        lambda content: b"\0" * 20000,
        lambda content: b"",
    ],
)
def test_what_is_not_of_this_scrun(settings: Path, change: Callable[[bytes], bytes]) -> None:
    load_and_remember({}, str(settings))
    (found,) = (settings.parent / "root").iterdir()
    found.write_bytes(change(found.read_bytes()))
    assert recall({}, str(settings)) is None
