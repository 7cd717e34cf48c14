"""What is removed when a container goes: all that is its own, however deep, and nothing else."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scrun.client import replay
from scrun.core import trees
from scrun.core.errors import StagingError
from scrun.model.record import Record
from scrun.supervisor.containers.records import make_record, remove_half_made, remove_record
from scrun.supervisor.core import files
from scrun.supervisor.staging import stage_out
from scrun.supervisor.staging.bring_back import merge

SOCKET = "@user-1"
DEEP = 1200
"""More than Python calls functions within each other, and a path can say."""


def run(*command: str) -> None:
    subprocess.run(command, check=True)


Nest = Callable[[Path], None]


@pytest.fixture
def nest() -> Iterator[Nest]:
    """Makes directories within each other, with a file in the last."""
    with contextlib.ExitStack() as stack:

        def make(directory: Path) -> None:
            # pytest could not remove them either
            stack.callback(run, "rm", "-rf", str(directory / "deeper"))
            here = os.open(directory, os.O_RDONLY)
            for _ in range(DEEP):
                os.mkdir("deeper", dir_fd=here)
                inner = os.open("deeper", os.O_RDONLY, dir_fd=here)
                os.close(here)
                here = inner
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here))
            os.close(here)

        yield make


@pytest.fixture
def root(tmp_path: Path, no_descriptor_stays: None) -> Path:
    """A root directory with one record, of which nothing is left open."""
    path = tmp_path / "root"
    path.mkdir()
    os.close(make_record(str(path / "c1"), SOCKET, Record("c1")))
    return path


@pytest.fixture(params=["tmpfs", "bind"])
def mounted(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> Iterator[Path]:
    """Something that a script has mounted in the record: also a directory of the same disk."""
    point = root / "c1" / "spool" / "image"
    point.mkdir(parents=True)
    if request.param == "bind":
        (tmp_path / "data").mkdir()
        run("mount", "--bind", str(tmp_path / "data"), str(point))
    else:
        run("mount", "-t", "tmpfs", "tmpfs", str(point))
    (point / "precious").write_text("precious")
    yield point
    with open("/proc/self/mountinfo") as mounts:
        there = [line.split()[4] for line in mounts if str(root) in line]
    assert len(there) == 1
    assert (Path(there[0]) / "precious").read_text() == "precious"
    run("umount", there[0])


def test_a_record_is_removed(root: Path, nest: Nest) -> None:
    (root / "c1" / "unreadable").mkdir(mode=0)
    nest(root / "c1")
    remove_record(str(root / "c1"), SOCKET)
    assert os.listdir(root) == []


@pytest.mark.covers("security what is in a root directory")
def test_what_is_mounted_in_a_record_is_left(root: Path, mounted: Path) -> None:
    with pytest.raises(StagingError, match=r"/spool/image is a mount point: unmount it"):
        remove_record(str(root / "c1"), SOCKET)
    assert not (root / "c1").exists()


def test_what_is_mounted_in_a_record_that_a_command_has_made_is_left(
    root: Path, mounted: Path
) -> None:
    """Tasks that are alike make and remove theirs without a supervisor."""
    folder = os.open(root, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="is not to be entered"):
            replay._remove_folder(folder, "c1", replay._mount_of(folder), 0)
    finally:
        os.close(folder)
    assert (mounted / "precious").read_text() == "precious"


def test_what_is_mounted_in_half_a_record_is_left(root: Path, mounted: Path) -> None:
    (root / "c1").rename(root / f"@tmp{SOCKET}1")
    remove_half_made(str(root), SOCKET)


@pytest.mark.covers("security what is in a root directory")
def test_no_link_in_a_record_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("kept")
    (root / "c1" / "link").symlink_to(tmp_path / "outside")
    remove_record(str(root / "c1"), SOCKET)
    assert (tmp_path / "outside" / "kept").exists()
    assert os.listdir(root) == []


def test_a_staged_bundle_of_any_depth_is_removed(tmp_path: Path, nest: Nest) -> None:
    staged = tmp_path / "staged"
    (staged / "rootfs").mkdir(parents=True)
    nest(staged / "rootfs")
    assert files.mebibytes(str(staged)) > 1
    stage_out.stage_out(str(staged))
    assert not staged.exists()


def test_a_mount_deep_in_a_staged_bundle_is_named(root: Path, mounted: Path) -> None:
    bundle = root / "c1"
    (bundle / "spool").rename(bundle / "rootfs")
    with pytest.raises(StagingError, match=f"{bundle}/rootfs/image is a mount point"):
        stage_out.stage_out(str(bundle))


def test_directories_that_are_moved_away_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way back up would lead into what is not to be removed."""
    victim, doomed = tmp_path / "victim", tmp_path / "doomed"
    (victim / "a").mkdir(parents=True)
    (doomed / "a" / "b").mkdir(parents=True)
    listdir = os.listdir

    def listed(folder: int) -> list[str]:
        found = listdir(folder)
        if not found:  # in b
            (doomed / "a" / "b").rename(victim / "b")
        return found

    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(os, "listdir", listed)
    try:
        with pytest.raises(StagingError, match="doomed/a/b was moved while it was removed"):
            trees.remove(folder, "doomed", os.fstat(folder).st_dev)
    finally:
        monkeypatch.undo()
        os.close(folder)
    assert sorted(os.listdir(victim)) == ["a", "b"]


def copy(volume: Path, copied: Path) -> None:
    merge(
        str(volume),
        str(copied),
        (),
        since=-1,
        others_since=0,
        owners=False,
        go_on=lambda: True,
        count=lambda size: None,
        known={},
        inwards=True,
    )


def test_a_volume_that_a_container_has_nested_is_not_copied(tmp_path: Path, nest: Nest) -> None:
    volume, copied = tmp_path / "volume", tmp_path / "copy"
    volume.mkdir()
    copied.mkdir()
    nest(volume)
    assert trees.size_of(str(volume), 1) == 0
    with pytest.raises((RecursionError, OSError)):
        copy(volume, copied)


@pytest.mark.covers("security a volume that a container shares")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_no_link_that_takes_a_place_meanwhile_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A container that shares a volume would have files of the host copied into another one."""
    volume, secret = tmp_path / "volume", tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    volume.mkdir()
    bait = volume / "bait"
    if what == "file":
        bait.write_text("harmless")
    else:
        bait.mkdir()
    stat = os.stat

    def exchanged(path: Any, **how: Any) -> os.stat_result:
        found = stat(path, **how)
        if path == "bait":
            bait.rename(tmp_path / "before")
            bait.symlink_to(secret / "key" if what == "file" else secret)
        return found

    monkeypatch.setattr(os, "stat", exchanged)
    (tmp_path / "copy").mkdir()
    copy(volume, tmp_path / "copy")
    monkeypatch.undo()
    assert bait.is_symlink()
    assert not any(
        "secret" in p.read_text() for p in (tmp_path / "copy").rglob("*") if p.is_file()
    )
