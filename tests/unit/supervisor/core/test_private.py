"""Directories that only their owner may enter, in places that many share."""

import os
from pathlib import Path

import pytest

from scrun.core.errors import StagingError
from scrun.supervisor.core import files
from scrun.supervisor.core.files import make_private, not_ours

pytestmark = pytest.mark.covers("security create the place of staged bundles first")


def test_one_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    make_private(str(path), "say another")
    assert path.stat().st_mode & 0o777 == 0o700
    make_private(str(path), "say another")
    (path / "x").touch()
    with pytest.raises(StagingError, match="it is not empty; say another"):
        make_private(str(path), "say another")


def test_one_of_somebody_whom_we_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's own is nobody else's to write to, and yet not ours: root may remove what is there."""
    (path := tmp_path / "there").mkdir(0o700)
    owner = os.geteuid()
    monkeypatch.setattr(files, "replaceable", lambda path: "")
    assert not_ours(str(path)) == ""
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    assert not_ours(str(path)) == "it belongs to somebody else"
    with pytest.raises(StagingError, match="it belongs to somebody else; say another"):
        make_private(str(path), "say another")


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_directory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "there"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(0o700)
        path.symlink_to("elsewhere")
    else:
        path.write_text("")
    assert not_ours(str(path))
