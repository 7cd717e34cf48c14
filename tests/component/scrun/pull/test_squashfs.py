"""Squashfs files of somebody else: what they unpack to has bounds."""

import struct
import subprocess
from pathlib import Path

import pytest

from scrun.core.errors import ImageError
from scrun.images.store import Defaults
from scrun.pull import programs
from scrun.pull.layers import ENTRIES
from scrun.pull.squashfs import look_into_squashfs, unpack_squashfs

pytestmark = pytest.mark.covers("security the layers of an image")

MUCH = 128 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One of some 20 KiB, with a file of 128 MiB."""
    (content := tmp_path / "content").mkdir()
    with (content / "much").open("wb") as much:
        for _ in range(MUCH >> 20):
            much.write(b"scrun   " * (1 << 17))
    path = tmp_path / "image.sqsh"
    words = ["mksquashfs", str(content), str(path), "-quiet", "-no-progress"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    assert path.stat().st_size < 4 << 20
    return path


def test_what_unpacks_to_too_much(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """unsquashfs is ended soon after it has written more."""
    monkeypatch.setattr(programs, "_INTERVAL", 0.01)
    told = r"it unpacks to more than 8 MiB: raise \[images\] unpacked_size"
    with pytest.raises(ImageError, match=told):
        unpack_squashfs(str(file), str(tmp_path / "rootfs"), 8 << 20)
    written = (tmp_path / "rootfs" / "much").stat().st_blocks * 512
    assert written < MUCH
    read: list[int] = []
    unpack_squashfs(str(file), str(tmp_path / "whole"), 2 * MUCH, read.append)
    assert 0 < read[-1] < 4 * file.stat().st_size + (1 << 20)  # and the libraries
    assert read == sorted(read)
    assert (tmp_path / "whole" / "much").stat().st_size == MUCH
    unpack_squashfs(str(file), str(tmp_path / "again"), 0)


def test_too_many_files(tmp_path: Path) -> None:
    """It is not even begun."""
    (path := tmp_path / "image.sqsh").write_bytes(
        struct.pack("<4sI", b"hsqs", ENTRIES + 1) + bytes(4096)
    )
    with pytest.raises(ImageError, match=f"has {ENTRIES + 1} files, at most {ENTRIES} are"):
        unpack_squashfs(str(path), str(tmp_path / "rootfs"), 0)
    assert not (tmp_path / "rootfs").exists()


@pytest.mark.parametrize("link", ["environment", "etc"])
def test_links_in_etc_lead_nowhere_outside(tmp_path: Path, link: str) -> None:
    """Neither that of a file nor that of its directory: what it has for the program is its own."""
    (outside := tmp_path / "outside").mkdir()
    (outside / "environment").write_text("SECRET=1\n")
    (content := tmp_path / "content").mkdir()
    if link == "etc":
        (content / "etc").symlink_to(outside)
    else:
        (content / "etc").mkdir()
        (content / "etc" / "environment").symlink_to(outside / "environment")
    path = tmp_path / "image.sqsh"
    words = ["mksquashfs", str(content), str(path), "-quiet", "-no-progress"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    for number, get in enumerate((unpacked, look_into_squashfs)):
        defaults = get(str(path), str(tmp_path / f"rootfs-{number}"))
        assert [word for word in defaults.env if not word.startswith("PATH=")] == []


def unpacked(file: str, rootfs: str) -> Defaults:
    return unpack_squashfs(file, rootfs, 0)
