"""Volumes that only the submit host has: what containers change there comes back."""

import contextlib
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scrun.core.errors import StagingError
from scrun.images.leases import Lease, lease_of
from scrun.images.locks import locked_if_free
from scrun.model.identity import myself
from scrun.model.record import ProcessIdentity
from scrun.supervisor.staging import bring_back as bring_back_module
from scrun.supervisor.staging import volumes as volumes_module
from scrun.supervisor.staging.hard_links import HardLinks
from scrun.supervisor.staging.owner import volumes_in
from scrun.supervisor.staging.plan import Volume
from scrun.supervisor.staging.volumes import Transfer, bring_back, bring_in, tidy

GRAIN = 0.02  # seconds; that of the kernel's file times is some milliseconds


class Site:
    """A submit host with a volume, and containers that use it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"
        self.scratch = base / "scratch"
        self.volume = base / "volume"
        for path in (self.root, self.scratch, self.volume):
            path.mkdir(mode=0o700)
        (self.volume / "old").write_text("old")
        (self.volume / "folder").mkdir()
        (self.volume / "folder" / "inner").write_text("inner")
        time.sleep(GRAIN)

    @property
    def shared(self) -> Path:
        return Path(volumes_in(str(self.scratch), str(self.root)))

    def begin(
        self, name: str, source: Path | None = None, *, read_only: bool = False, limit: int = 0
    ) -> Path:
        """Stage a container's volume; return the path of its copy."""
        (self.root / name).mkdir()
        (self.scratch / name).mkdir()
        source = source or self.volume
        volume = Volume(
            destination="/x",
            source=str(source),
            place=str(self.shared / source.name),
            is_file=not source.is_dir(),
            read_only=read_only,
            shared=True,
        )
        transfer = Transfer(lease_of(str(self.root), name), limit)
        bring_in(
            str(self.scratch / name), [volume], transfer, owners=os.geteuid() == 0, mode=0o700
        )
        time.sleep(GRAIN)
        return Path(volume.data)

    def end(self, name: str) -> None:
        time.sleep(GRAIN)
        bring_back(str(self.scratch / name), Transfer())
        (self.root / name).rmdir()

    def kept(self) -> list[Path]:
        return [*self.scratch.glob("~kept-*/data")]

    def is_clean(self) -> bool:
        return not (self.shared.exists() or self.kept())


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


def test_nothing_is_touched_that_no_container_has_changed(site: Site) -> None:
    before = [(path, path.lstat()) for path in sorted(site.volume.rglob("*"))]
    site.begin("one")
    site.end("one")
    assert [(path, path.lstat()) for path in sorted(site.volume.rglob("*"))] == before
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
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", site.volume], check=True)
    (site.volume / "old").write_text("old")
    time.sleep(GRAIN)
    yield site
    subprocess.run(["umount", site.volume], check=True)


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


def lost(site: Site, name: str) -> None:
    """Have a container's supervisor be dead, and its record gone: the machine was restarted."""
    for path in site.shared.rglob("leases/*"):
        lease = msgspec.json.decode(path.read_bytes(), type=Lease)
        if lease.id == name:
            mine = myself()
            dead = ProcessIdentity(mine.pid, mine.started, mine.pid_namespace, "before", mine.host)
            path.write_bytes(msgspec.json.encode(msgspec.structs.replace(lease, taker=dead)))
    (site.root / name).rmdir()


def test_after_a_restart_of_the_machine_it_comes_back(site: Site) -> None:
    (site.begin("one") / "made").write_text("made")
    assert [*tidy(str(site.shared))] == []
    lost(site, "one")
    [line] = tidy(str(site.shared))
    assert line.endswith("what containers had changed is back")
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
        patch.setattr(volumes_module, "merge", merged)
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
