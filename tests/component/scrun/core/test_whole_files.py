"""A file is there as a whole or not at all."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scrun.core.whole_files import PART, write_whole
from scrun.images import store as images
from scrun.images.leases import lease_of
from scrun.images.store import Facts, Store, shrink
from tests.harness.places import mounted

KEY = "k1"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    place = tmp_path / "small"
    with mounted(place, "-o", "size=1m"):
        yield place


def fill(place: Path) -> Path:
    """Fill a file system to the last byte."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


def killed_while_it_writes(path: Path) -> None:
    """Have a process killed that has written a half."""
    pid = os.fork()
    if pid == 0:
        os.ftruncate = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write_whole(str(path), b"never")
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def filled(directory: str, _: object) -> Facts:
    os.makedirs(f"{directory}/rootfs")
    Path(directory, "rootfs", "file").write_bytes(bytes(8192))
    return Facts("docker://true:1")


def test_it_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, mode in ((b"long" * 100_000, 0o600), (b"", 0o755), (b"short", 0o644)):
        write_whole(str(path), content, mode)
        assert (path.read_bytes(), path.stat().st_mode & 0o7777) == (content, mode)
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_what_was_there(small: Path) -> None:
    path = small / "file"
    write_whole(str(path), b"before")
    filler = fill(small)
    with pytest.raises(OSError, match="No space"):
        write_whole(str(path), b"after")
    assert path.read_bytes() == b"before"
    assert sorted(os.listdir(small)) == ["file", "filler"]
    filler.unlink()


def test_what_a_killed_process_leaves_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for _ in range(3):
        killed_while_it_writes(path)
    assert os.listdir(tmp_path) == [f"file{PART}"]
    write_whole(str(path), b"whole")
    assert os.listdir(tmp_path) == ["file"]


def test_many_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    pids = []
    for number in range(8):
        pid = os.fork()
        if pid == 0:
            for _ in range(50):
                write_whole(str(path), b"%d" % number * 5000)
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 8
    assert len({*path.read_bytes()}) == 1
    assert os.listdir(tmp_path) == ["file"]


def test_a_store_on_a_full_disk_shrinks(small: Path, tmp_path: Path) -> None:
    store = Store(str(small / "images"))
    store.make(KEY, filled)
    filler = fill(small)
    lease = lease_of(str(tmp_path), "c1")
    with pytest.raises(OSError, match="No space"):
        store.lease(KEY, lease)
    assert store.users(KEY) == []
    shrink(store, 1)
    assert store.entries() == []
    assert os.listdir(f"{store.path}/leases") == []
    filler.unlink()


@pytest.mark.parametrize("left", ["0" * 24 + ".4711", "0" * 24 + PART])
def test_what_was_no_lease_yet_holds_no_image(tmp_path: Path, left: str) -> None:
    """Of this version, or of one before."""
    store = Store(str(tmp_path / "images"))
    store.make(KEY, filled)
    folder = Path(store.path, "leases", KEY)
    folder.mkdir()
    (folder / left).touch()
    assert store.users(KEY) == []
    assert store.remove(KEY) == []
    assert store.entries() == []
    assert os.listdir(f"{store.path}/leases") == []


def test_an_empty_lease_holds_for_a_month(tmp_path: Path) -> None:
    """A machine that lost its power may leave one: nobody knows whose it is."""
    store = Store(str(tmp_path / "images"))
    store.make(KEY, filled)
    folder = Path(store.path, "leases", KEY)
    folder.mkdir()
    (folder / ("0" * 24)).touch()
    assert store.remove(KEY)
    os.utime(folder / ("0" * 24), (1, 1))
    assert store.remove(KEY) == []


def test_what_is_left_of_names_goes_after_a_day(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "images"))
    images.remember(store, "docker://true:1", "sha256:0", KEY)
    folder = Path(store.path, "tags")
    [name] = os.listdir(folder)
    for old in (f"{name}+4711", f"{'0' * 32}{PART}"):
        (folder / old).touch()
        os.utime(folder / old, (1, 1))
    (folder / f"{'1' * 32}{PART}").touch()
    images.forget(store, set())
    assert sorted(os.listdir(folder)) == sorted([name, f"{'1' * 32}{PART}"])
