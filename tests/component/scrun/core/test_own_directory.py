"""The root directory: the user's own, or none."""

import os
import stat
from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.core.own_directory import own_directory

pytestmark = pytest.mark.covers("security the root directory")


def test_it_is_made(tmp_path: Path) -> None:
    """For nobody else, with what is missing above it."""
    path = tmp_path / "a" / "root"
    own_directory(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    own_directory(str(path))


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o1770])
def test_one_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    """The sticky bit does not help: anybody could make a record in it."""
    (path := tmp_path / "root").mkdir()
    path.chmod(mode)
    with pytest.raises(SettingsError):
        own_directory(str(path))


@pytest.mark.by_root
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_one_of_somebody_else(tmp_path: Path, mode: int) -> None:
    (path := tmp_path / "root").mkdir()
    path.chmod(mode)
    os.chown(path, 12345, 12345)
    with pytest.raises(SettingsError, match="12345"):
        own_directory(str(path))


def test_roots_own_is_not_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is trusted, and yet not the user's: nobody else can make a record there."""
    (path := tmp_path / "root").mkdir(0o755)
    monkeypatch.setattr("scrun.core.own_directory.replaceable", lambda path: "")
    owner = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with pytest.raises(SettingsError, match=f"belongs to uid {owner}"):
        own_directory(str(path))


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(SettingsError, match="is not a directory"):
        own_directory(str(tmp_path / "root"))
