"""Volumes that others change, or stop using, while they are copied; and renamed directories."""

import contextlib
import fcntl
import os
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from scrun.core.errors import StagingError
from scrun.images import leases
from scrun.images.leases import locked_if_free
from scrun.supervisor.staging import bring_back as bring_back_module
from scrun.supervisor.staging import transfer as transfer_module
from scrun.supervisor.staging import volumes as volumes_module
from scrun.supervisor.staging.levels import HardLinks
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.volumes import bring_back, tidy
from tests.harness.volumes import GRAIN, Site, lost


@pytest.fixture
def site(tmp_path: Path, no_descriptor_stays: None) -> Site:
    return Site(tmp_path)


def test_who_begins_while_the_last_one_removes_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two steps of the one, the other one's directories come and go."""
    plain = os.mkdir
    gone = 0

    def mkdir(path: Any, *args: Any, **more: Any) -> None:
        nonlocal gone
        with contextlib.suppress(FileExistsError):
            plain(path, *args, **more)
        if gone < 2 and site.shared in (Path(path), Path(path).parent):
            gone += 1
            os.rmdir(path)

    monkeypatch.setattr(os, "mkdir", mkdir)
    site.begin("one")
    assert gone == 2
    plain_unlink = os.unlink

    def unlink(path: Any, *args: Any, **more: Any) -> None:
        plain_unlink(path, *args, **more)
        if path == "lock":
            (site.shared / "volume" / "lock").touch()

    monkeypatch.setattr(os, "unlink", unlink)
    site.end("one")
    assert os.listdir(site.shared / "volume") == ["lock"]


def test_somebody_else_has_brought_it_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a dead supervisor may be brought back by a successor, and by whoever tidies up."""
    (site.begin("one") / "made").write_text("made")
    real = leases.locked

    def locked(path: str, **more: Any) -> Any:
        monkeypatch.undo()
        lost(site, "one")
        assert len([*tidy(str(site.shared))]) == 1
        (site.root / "one").mkdir()
        return real(path, **more)

    monkeypatch.setattr(volumes_module, "locked", locked)
    site.end("one")
    assert (site.volume / "made").read_text() == "made"
    assert site.is_clean()


def test_a_lock_that_was_made_anew_is_not_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    real = fcntl.flock

    def flock(fd: int, kind: int) -> None:
        real(fd, kind)
        path.unlink()
        path.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        with locked_if_free(str(path)) as free:
            assert not free


def test_what_is_kept_is_in_nobodys_way(site: Site) -> None:
    """A supervisor may be killed after it has kept a copy; one that tidies up keeps one, too."""
    copy = site.begin("one")
    (copy / "old").write_text("by the container")
    (site.volume / "old").write_text("here")
    lost(site, "one")
    [line] = tidy(str(site.shared))
    assert "old changed here" in line
    assert [*tidy(str(site.shared))] == []
    assert len(os.listdir(site.scratch)) == 2  # one's staged bundle, and what is kept
    assert (site.begin("two") / "old").read_text() == "here"
    site.end("two")
    assert not site.shared.exists()


def test_a_conflict_of_a_dead_one_does_not_stop_the_next(site: Site) -> None:
    copy = site.begin("one")
    (copy / "old").write_text("by the container")
    (site.volume / "old").write_text("here")
    lost(site, "one")
    assert (site.begin("two") / "old").read_text() == "here"
    assert (site.kept()[0] / "old").read_text() == "by the container"
    site.end("two")
    assert not site.shared.exists()


def test_what_was_known_of_a_kept_copy_says_nothing_of_the_next(site: Site) -> None:
    """Else the next one, if it is interrupted, would look as if its container removed files."""
    copy = site.begin("one")
    copy.rename(site.scratch / "kept")  # and then its supervisor was killed
    lost(site, "one")
    with pytest.raises(StagingError, match="more than"):
        site.begin("two", limit=1)
    assert not (copy.parent / "volume.json").exists()
    bring_back(str(site.scratch / "two"), Transfer())
    assert (site.volume / "old").read_text() == "old"


def test_names_that_are_not_utf8(site: Site) -> None:
    name = os.fsencode(site.volume) + b"/\xff\n"
    with open(name, "wb"):
        pass
    time.sleep(GRAIN)
    copy = site.begin("one")
    site.begin("two")
    for folder in (copy, site.volume):
        with open(os.fsencode(folder) + b"/\xff\n", "wb") as file:
            file.write(os.fsencode(folder))
    time.sleep(GRAIN)
    with pytest.raises(StagingError, match=r"\\udcff\\n changed here"):
        site.end("one")
    (site.root / "one").rmdir()
    with pytest.raises(StagingError, match=r"\\udcff\\n changed here"):
        site.end("two")


def test_a_socket_that_a_container_makes_a_file_of(site: Site) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(site.volume / "socket"))
        copy = site.begin("one")
        (copy / "socket").write_text("a file")
        with pytest.raises(StagingError, match="socket changed here"):
            site.end("one")
        assert (site.volume / "socket").is_socket()


def test_a_file_named_as_temporaries_are(site: Site) -> None:
    (site.volume / ".scrun-writing").write_text("somebody's")
    time.sleep(GRAIN)
    site.begin("one")
    site.end("one")
    assert (site.volume / ".scrun-writing").read_text() == "somebody's"


def test_a_mode_that_was_changed_here(site: Site) -> None:
    copy = site.begin("one")
    (copy / "folder" / "made").touch()
    (copy / "made").touch()
    (site.volume / "folder").chmod(0o700)
    site.volume.chmod(0o750)
    with pytest.raises(StagingError, match=r"folder, \. changed here"):
        site.end("one")
    assert stat.S_IMODE((site.volume / "folder").stat().st_mode) == 0o700
    assert stat.S_IMODE(site.volume.stat().st_mode) == 0o750
    assert (site.volume / "folder" / "made").exists()


def test_a_device_in_the_place_of_a_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container swaps them while another one's changes come back: it is never opened."""
    copy = site.begin("one")
    (copy / "old").write_text("new")

    def swapped(*args: Any) -> bool:
        (copy / "old").unlink()
        os.mkfifo(copy / "old")
        return False

    monkeypatch.setattr(HardLinks, "link", swapped)
    site.end("one")
    assert (site.volume / "old").read_text() == "old"


def test_what_goes_on_in_the_copy_meanwhile(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another container makes files and removes them, while one's changes come back."""
    copy = site.begin("one")
    site.begin("two")
    for name in ("file", "folder/file"):
        (copy / name).write_text("temporary")
    (copy / "link").symlink_to("nowhere")
    (copy / "made").mkdir()
    (copy / "stays").write_text("stays")
    plain = os.listdir

    def listdir(path: Any) -> Any:
        found = plain(path)
        if "file" in found and "stays" in found:
            subprocess.run("rm -r file folder/file link made; ln -s / made", shell=True, cwd=copy)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listdir)
        site.end("one")
    assert (site.volume / "stays").read_text() == "stays"
    site.end("two")
    assert sorted(os.listdir(site.volume)) == ["folder", "made", "old", "stays"]
    assert (site.volume / "made").is_symlink()
    assert site.is_clean()


def test_what_is_made_here_while_changes_come_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is nothing that the container has removed."""
    copy = site.begin("one")
    site.begin("two")
    (copy / "made").write_text("made")

    def merged(*args: Any, **more: Any) -> Any:
        result = bring_back_module.merge(*args, **more)
        if (site.volume / "here").exists():  # it is the second time
            return result
        (site.volume / "here").write_text("here")
        (site.volume / "old").write_text("changed here")
        return result

    inode = (copy / "made").stat().st_ino
    with monkeypatch.context() as patch:
        patch.setattr(transfer_module, "merge", merged)
        site.end("one")
    assert (copy / "made").stat().st_ino == inode  # the other one may have it open
    assert (copy / "old").read_text() == "changed here"
    site.end("two")
    assert (site.volume / "here").read_text() == "here"
    assert (site.volume / "old").read_text() == "changed here"
    assert site.is_clean()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_file_system_whose_times_are_seconds(site: Site) -> None:
    """As on Lustre: what a container writes in the second of the copying has to come back."""
    disk = site.base / "disk"
    with open(disk, "wb") as file:
        file.truncate(4 << 20)
    subprocess.run(["mkfs.ext2", "-q", "-I", "128", disk], check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["mount", disk, site.scratch], check=True)
    try:
        for number in range(2):
            (site.begin(f"{number}") / "old").write_text(f"{number}")
            site.end(f"{number}")
            assert (site.volume / "old").read_text() == f"{number}"
    finally:
        subprocess.run(["umount", site.scratch], check=True)


def test_directories_that_a_container_renames(site: Site) -> None:
    """What is in them has kept its times."""
    for name in ("a", "b", "c"):
        (site.volume / name / "below").mkdir(parents=True)
        (site.volume / name / "same").write_text(name)
        (site.volume / name / "below" / name).write_text(name)
    time.sleep(GRAIN)
    copy = site.begin("one")
    (copy / "a").rename(copy / "moved")
    (copy / "b").rename(copy / "a")
    (copy / "c").rename(copy / "folder" / "c")
    (copy / "empty").mkdir()
    site.begin("two")
    site.end("two")
    assert (copy / "empty").is_dir()
    site.end("one")
    assert sorted(os.listdir(site.volume)) == ["a", "empty", "folder", "moved", "old"]
    for path, was in (("moved", "a"), ("a", "b"), ("folder/c", "c")):
        assert (site.volume / path / "same").read_text() == was
        assert os.listdir(site.volume / path / "below") == [was]
    assert site.is_clean()


def test_directories_that_others_move_here(site: Site) -> None:
    """They are nothing that a container has removed."""
    (site.base / "moved").mkdir()
    (site.base / "moved" / "inner").write_text("inner")
    time.sleep(GRAIN)
    copy = site.begin("one")
    (copy / "made").touch()
    (site.base / "moved").rename(site.volume / "moved")
    (site.volume / "empty").mkdir()
    site.end("one")
    assert (site.volume / "moved" / "inner").read_text() == "inner"
    assert (site.volume / "empty").is_dir()
    assert site.is_clean()


def test_directories_that_others_exchange_here(site: Site) -> None:
    """What is in them has old times, and is in no copy."""
    for name in ("a", "b", "c", "d"):
        (site.volume / name).mkdir()
        (site.volume / name / name).write_text(name)
    time.sleep(GRAIN)
    copy = site.begin("one")
    for new, name in (("b", "a"), ("d", "c")):
        (site.volume / name).rename(site.base / name)
        (site.volume / new).rename(site.volume / name)
    (copy / "c" / "made").touch()
    with pytest.raises(StagingError, match=r"volume: c changed here"):
        site.end("one")
    assert os.listdir(site.volume / "a") == ["b"]
    assert os.listdir(site.volume / "c") == ["d"]


def test_another_volume_in_its_place(site: Site) -> None:
    (site.base / "other").mkdir()
    (site.base / "other" / "mine").write_text("mine")
    time.sleep(GRAIN)
    copy = site.begin("one")
    (copy / "made").touch()
    site.volume.rename(site.base / "before")
    (site.base / "other").rename(site.volume)
    with pytest.raises(StagingError, match=r"it is a different directory now.* are kept in"):
        site.end("one")
    assert os.listdir(site.volume) == ["mine"]


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o500])
def test_the_mode_of_a_directory_stays(site: Site, mode: int) -> None:
    for folder in (site.volume, site.volume / "folder"):
        folder.chmod(mode)
    time.sleep(GRAIN)
    copy = site.begin("one")
    for folder in (copy, copy / "folder"):
        assert stat.S_IMODE(folder.stat().st_mode) == mode
        folder.chmod(0o700)
        (folder / "made").touch()
        folder.chmod(mode)
    site.end("one")
    for folder in (site.volume, site.volume / "folder"):
        assert stat.S_IMODE(folder.stat().st_mode) == mode
    site.volume.chmod(0o700)
    assert site.is_clean()


def test_a_directory_that_both_have_made(site: Site) -> None:
    copy = site.begin("one")
    for where, name in ((copy, "theirs"), (site.volume, "mine")):
        (where / "made").mkdir()
        (where / "made" / name).touch()
    site.end("one")
    assert sorted(os.listdir(site.volume / "made")) == ["mine", "theirs"]
    assert site.is_clean()
