"""Volumes that only the submit host has: what containers change there comes back."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.core.errors import StagingError
from scrun.images.leases import lease_of
from scrun.supervisor.staging.mounts import Volume
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.volumes import bring_back, bring_in, tidy, time_at, time_here
from tests.harness.places import mounted
from tests.harness.volumes import GRAIN, Site, lost


@pytest.fixture
def site(tmp_path: Path, no_descriptor_stays: None) -> Site:
    return Site(tmp_path)


def test_what_a_container_has_changed_comes_back(site: Site) -> None:
    copy = site.begin("one")
    (copy / "old").write_text("new")
    (copy / "made").mkdir()
    (copy / "made" / "link").symlink_to("../old")
    (copy / "folder" / "inner").unlink()
    (copy / "run").write_text("#!/bin/sh")
    (copy / "run").chmod(0o4750)
    os.utime(copy / "run", (1, 2))
    os.link(copy / "run", copy / "also")
    copy.chmod(0o1777)
    site.end("one")
    assert (site.volume / "old").read_text() == "new"
    assert os.readlink(site.volume / "made" / "link") == "../old"
    assert os.listdir(site.volume / "folder") == []
    run = (site.volume / "run").stat()
    assert (stat.S_IMODE(run.st_mode), run.st_mtime, run.st_nlink) == (0o4750, 2, 2)
    assert stat.S_IMODE(site.volume.stat().st_mode) == 0o1777
    assert site.is_clean()


def _changes(tree: Path) -> list[tuple[object, ...]]:
    """Return what a change in a tree changes; a copy of it is read, which may change st_atime."""
    found = [(path, path.lstat()) for path in sorted(tree.rglob("*"))]
    return [(path, *status[:7], status.st_ctime_ns) for path, status in found]


def test_nothing_is_touched_that_no_container_has_changed(site: Site) -> None:
    before = _changes(site.volume)
    site.begin("one")
    site.end("one")
    assert _changes(site.volume) == before
    assert site.is_clean()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file(site: Site, read_only: bool) -> None:
    source = site.volume / "old"
    copy = site.begin("one", source, read_only=read_only)
    assert copy.read_text() == "old"
    copy.write_text("new")
    site.end("one")
    assert source.read_text() == ("old" if read_only else "new")
    assert sorted(os.listdir(site.volume)) == ["folder", "old"]
    assert site.is_clean()


def test_containers_at_the_same_time_have_the_same(site: Site) -> None:
    one = site.begin("one")
    other = site.begin("other", read_only=True)
    assert one == other
    (one / "made").write_text("by one")
    assert (other / "made").read_text() == "by one"
    site.end("one")
    assert (site.volume / "made").read_text() == "by one"
    (other / "later").write_text("later")
    site.end("other")
    assert (site.volume / "later").read_text() == "later"
    assert site.is_clean()


def test_the_next_one_sees_what_was_written(site: Site) -> None:
    (site.begin("one") / "made").write_text("by one")
    site.end("one")
    assert (site.begin("two") / "made").read_text() == "by one"
    site.end("two")
    assert site.is_clean()


def test_who_comes_later_sees_what_has_changed_here_meanwhile(site: Site) -> None:
    copy = site.begin("one")
    (copy / "old").write_text("by one")
    (site.volume / "here").write_text("here")
    (site.volume / "folder" / "inner").unlink()
    site.begin("two")
    assert (copy / "here").read_text() == "here"
    assert not (copy / "folder" / "inner").exists()
    assert (copy / "old").read_text() == "by one"
    site.end("one")
    site.end("two")
    assert (site.volume / "old").read_text() == "by one"
    assert (site.volume / "here").read_text() == "here"
    assert not (site.volume / "folder" / "inner").exists()
    assert site.is_clean()


def test_what_others_have_made_changed_or_removed_here_stays_so(site: Site) -> None:
    (site.volume / "gone").write_text("gone")
    copy = site.begin("one")
    (copy / "made").write_text("made")
    (site.volume / "here").write_text("here")
    (site.volume / "old").write_text("changed here")
    (site.volume / "gone").unlink()
    (site.volume / "folder" / "more").write_text("more")
    site.end("one")
    assert sorted(os.listdir(site.volume)) == ["folder", "here", "made", "old"]
    assert (site.volume / "old").read_text() == "changed here"
    assert sorted(os.listdir(site.volume / "folder")) == ["inner", "more"]
    assert site.is_clean()


def test_what_both_have_changed_stays_and_the_containers_is_kept(site: Site) -> None:
    copy = site.begin("one")
    (copy / "old").write_text("by the container")
    (copy / "new").write_text("new")
    (site.volume / "old").write_text("by somebody else")
    time.sleep(GRAIN)
    with pytest.raises(StagingError, match=r"old changed here while container one ch.*~kept"):
        site.end("one")
    assert (site.volume / "old").read_text() == "by somebody else"
    assert (site.volume / "new").read_text() == "new"
    [kept] = site.kept()
    assert (kept / "old").read_text() == "by the container"
    assert not site.shared.exists()


def test_a_directory_that_one_removes_and_the_other_changes(site: Site) -> None:
    copy = site.begin("one")
    (copy / "folder" / "inner").unlink()
    (copy / "folder").rmdir()
    (site.volume / "folder" / "inner").write_text("changed here")
    time.sleep(GRAIN)
    with pytest.raises(StagingError, match="folder changed here"):
        site.end("one")
    assert (site.volume / "folder" / "inner").read_text() == "changed here"


def test_what_both_have_changed_to_the_same_is_no_conflict(site: Site) -> None:
    copy = site.begin("one")
    for where in (copy, site.volume):
        (where / "old").write_text("same")
        os.utime(where / "old", (1, 1))
    site.end("one")
    assert site.is_clean()


def test_a_conflict_is_known_until_the_last_one_ends(site: Site) -> None:
    copy = site.begin("one")
    site.begin("two")
    (copy / "old").write_text("by a container")
    (site.volume / "old").write_text("here")
    time.sleep(GRAIN)
    with pytest.raises(StagingError, match="until the last container that uses it has ended"):
        site.end("one")
    (site.root / "one").rmdir()
    with pytest.raises(StagingError, match="old changed here"):
        site.end("two")
    assert (site.volume / "old").read_text() == "here"
    assert (site.kept()[0] / "old").read_text() == "by a container"


def test_sockets_stay_and_are_named(site: Site) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(site.volume / "socket"))
        (site.scratch / "one").mkdir()
        (site.root / "one").mkdir()
        volume = Volume(
            destination="/x", source=str(site.volume), place=str(site.shared / "v"),
            is_file=False, read_only=False, shared=True,
        )  # fmt: skip
        transfer = Transfer(lease_of(str(site.root), "one"))
        said = bring_in(str(site.scratch / "one"), [volume], transfer, owners=False, mode=0o700)
        assert said == ["sockets, devices and mounts in /x (socket)"]
        assert not (Path(volume.data) / "socket").exists()
        site.end("one")
        assert stat.S_ISSOCK((site.volume / "socket").lstat().st_mode)


def test_a_source_that_is_gone(site: Site) -> None:
    site.begin("unchanged")
    subprocess.run(["mv", site.volume, site.base / "moved"], check=True)
    site.end("unchanged")
    assert site.is_clean()
    subprocess.run(["mv", site.base / "moved", site.volume], check=True)
    copy = site.begin("one")
    (copy / "result").write_text("result")
    subprocess.run(["mv", site.volume, site.base / "moved"], check=True)
    with pytest.raises(StagingError, match=r"No such file.*are kept in .*~kept-one"):
        site.end("one")
    assert (site.kept()[0] / "result").read_text() == "result"


def test_a_source_that_is_something_else_now(site: Site) -> None:
    """A copy is kept only if a container has changed it."""
    site.begin("unchanged")
    subprocess.run(["mv", site.volume, site.base / "moved"], check=True)
    site.volume.write_text("a file now")
    site.end("unchanged")
    assert site.is_clean()
    site.volume.unlink()
    subprocess.run(["mv", site.base / "moved", site.volume], check=True)
    copy = site.begin("one")
    (copy / "old").unlink()
    subprocess.run(["mv", site.volume, site.base / "moved"], check=True)
    site.volume.write_text("a file now")
    with pytest.raises(StagingError, match=r"are kept in .*~kept-one"):
        site.end("one")
    assert not (site.kept()[0] / "old").exists()


def test_too_large_leaves_nothing(site: Site) -> None:
    (site.volume / "large").write_bytes(b"x" * (2 << 20))
    with pytest.raises(StagingError, match=r"mount /x: .* more than 1 MiB"):
        site.begin("one", limit=1 << 20)
    bring_back(str(site.scratch / "one"), Transfer())
    assert site.is_clean()


def test_holes_stay_holes(site: Site) -> None:
    with open(site.volume / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"x")
    copy = site.begin("one", limit=1 << 20)
    (copy / "sparse").chmod(0o600)
    site.end("one")
    status = (site.volume / "sparse").stat()
    assert (status.st_size, status.st_blocks < 1000) == (1 << 40, True)


@pytest.fixture
def small(site: Site) -> Iterator[Site]:
    """The volume is on a disk of its own with room for little."""
    with mounted(site.volume, "-o", "size=256k"):
        (site.volume / "old").write_text("old")
        time.sleep(GRAIN)
        yield site


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_disk_that_fills(small: Site) -> None:
    copy = small.begin("one")
    (copy / "old").write_bytes(b"x" * (1 << 20))
    (copy / "small").write_text("small")
    with pytest.raises(StagingError, match=r"No space left on device.*are kept in"):
        small.end("one")
    assert (small.volume / "old").read_text() == "old"
    assert not (small.volume / ".scrun-writing").exists()
    assert (small.kept()[0] / "old").stat().st_size == 1 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_file_that_is_a_mount_is_written_in_its_place(site: Site) -> None:
    """An engine may have bound it: nothing can be renamed over that."""
    behind = site.base / "behind"
    behind.write_text("behind")
    source = site.volume / "old"
    subprocess.run(["mount", "--bind", behind, source], check=True)
    try:
        site.begin("one", source).write_text("new")
        site.end("one")
        assert behind.read_text() == "new"
    finally:
        subprocess.run(["umount", source], check=True)


def test_after_a_restart_of_the_machine_it_comes_back(site: Site) -> None:
    (site.begin("one") / "made").write_text("made")
    assert [*tidy(str(site.shared))] == []
    lost(site, "one")
    [line] = tidy(str(site.shared))
    assert line.endswith("the containers' changes are back")
    assert (site.volume / "made").read_text() == "made"
    assert site.is_clean()


def test_after_a_restart_the_next_container_has_it(site: Site) -> None:
    (site.begin("one") / "made").write_text("made")
    lost(site, "one")
    assert (site.begin("two") / "made").read_text() == "made"
    assert (site.volume / "made").read_text() == "made"
    site.end("two")
    assert site.is_clean()


KILLED = """
import os, signal, sys
from scrun.supervisor.staging import bring_back as module, volumes
copied, left = module.copy_content, [int(sys.argv[2])]
def content(*args):
    copied(*args)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
module.copy_content = content
volumes.bring_back(sys.argv[1], volumes.Transfer())
"""


@pytest.mark.parametrize("files", [1, 2, 5])
def test_whoever_is_killed_meanwhile_is_succeeded(site: Site, files: int) -> None:
    """Each file is whole or as it was, and the next one who brings it back does the rest."""
    copy = site.begin("one")
    for number in range(8):
        (copy / f"{number}").write_text(f"{number}" * 1000)
    (copy / "old").write_text("new")
    (copy / "folder" / "inner").unlink()
    time.sleep(GRAIN)
    command = [sys.executable, "-c", KILLED, str(site.scratch / "one"), str(files)]
    done = subprocess.run(command, check=False)
    assert done.returncode == -signal.SIGKILL
    for path in site.volume.glob("[0-9]"):
        assert path.read_text() == path.name * 1000
    assert (site.volume / "old").read_text() in ("old", "new")
    site.end("one")
    assert sorted(os.listdir(site.volume)) == [*map(str, range(8)), "folder", "old"]
    assert (site.volume / "old").read_text() == "new"
    assert site.is_clean()


def test_a_copy_that_was_interrupted_never_counts(site: Site) -> None:
    """Else all that it lacks would be removed."""
    copy = site.begin("one")
    (copy.parent / "volume.json").unlink()
    (copy / "old").unlink()
    site.end("one")
    assert (site.volume / "old").read_text() == "old"
    assert site.is_clean()


def test_many_small_files(site: Site) -> None:
    for number in range(3000):
        (site.volume / f"{number}").touch()
    copy = site.begin("one")
    (copy / "0").write_text("x")
    site.end("one")
    assert (site.volume / "0").read_text() == "x"
    assert len(os.listdir(site.volume)) == 3002


COARSE = 5  # CLOCK_REALTIME_COARSE


def test_what_changes_later_has_a_later_time(tmp_path: Path) -> None:
    for number in range(5):
        before = time_here()
        assert time.clock_gettime_ns(COARSE) > before
        there = time_at(str(tmp_path))
        (tmp_path / f"{number}").touch()
        assert (tmp_path / f"{number}").stat().st_ctime_ns > max(before, there)
