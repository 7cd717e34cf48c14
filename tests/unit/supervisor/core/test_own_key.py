"""The secret of the supervisors of a root directory."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.supervisor.core import own_key


@pytest.fixture(autouse=True)
def another() -> Iterator[None]:
    """Leave that of this process as it was."""
    before = own_key._own.root, own_key._own.content
    yield
    own_key._own.root, own_key._own.content = before


def key_in(root: Path) -> bytes:
    """That of another supervisor there."""
    own_key.keep_key_in(str(root))
    return own_key.own_key()


def test_successors_have_the_same(tmp_path: Path) -> None:
    first = key_in(tmp_path)
    assert len(first) == 16
    assert key_in(tmp_path) == first == own_key.own_key()
    assert os.listdir(tmp_path) == ["@key"]
    assert stat.S_IMODE((tmp_path / "@key").stat().st_mode) == 0o600
    (other := tmp_path / "other").mkdir()
    assert key_in(other) != first


@pytest.mark.parametrize("harm", ["short", "link", "fifo", "folder", "gone"])
def test_one_that_cannot_be_read(tmp_path: Path, harm: str) -> None:
    """Then there is one that nobody else has."""
    root = tmp_path / "root"
    if harm != "gone":
        root.mkdir()
    path = root / "@key"
    if harm == "short":
        path.write_bytes(b"x")
    elif harm == "link":
        (tmp_path / "elsewhere").write_bytes(b"x" * 16)
        path.symlink_to(tmp_path / "elsewhere")
    elif harm == "fifo":
        os.mkfifo(path)
    elif harm == "folder":
        path.mkdir()
    found = key_in(root)
    assert len(found) == 16
    assert found != b"x" * 16
    assert key_in(root) != found
