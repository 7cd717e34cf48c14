"""The store of images: complete or not there, made once, and never removed while it is used."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from scrun.core.errors import ImageError
from scrun.images.leases import Lease, Lock, lease_of, locked
from scrun.images.store import Facts, Store, find_elsewhere
from scrun.model.identity import myself
from tests import CHECKOUT

KEY = "sha256-1"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def filled(directory: str, lock: Lock) -> Facts:
    lock.say("1 of 2 GiB")
    os.makedirs(f"{directory}/rootfs/bin")
    Path(directory, "rootfs", "bin", "true").write_bytes(b"x" * 5000)
    return Facts("docker://true:1", "sha256:1")


def never(directory: str, lock: Lock) -> Facts:
    raise AssertionError("made a second time")


def left(store: Store) -> list[str]:
    return os.listdir(f"{store.path}/tmp")


def test_an_image_is_made_once(store: Store) -> None:
    assert store.find(KEY) is None
    made = store.make(KEY, filled)
    assert store.make(KEY, never) == made == store.find(KEY)
    assert store.entries() == [made]
    assert (made.facts.source, made.facts.digest) == ("docker://true:1", "sha256:1")
    assert made.facts.size >= 5000
    assert Path(made.rootfs, "bin", "true").stat().st_size == 5000
    assert left(store) == []
    assert os.stat(store.path).st_mode & 0o777 == 0o700


def test_what_fails_leaves_nothing(store: Store) -> None:
    def fails(directory: str, lock: Lock) -> Facts:
        filled(directory, lock)
        os.chmod(f"{directory}/rootfs/bin", 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make(KEY, fails)
    assert store.find(KEY) is None
    assert left(store) == []


def program(store: Store, what: str) -> subprocess.Popen[str]:
    code = f"""
import sys, time, os
sys.path[:0] = [{str(CHECKOUT)!r}]
from scrun.images.store import Facts, Store
def fill(directory, lock):
    os.makedirs(directory + "/rootfs/a")
    os.chmod(directory + "/rootfs/a", 0)
    lock.say("1 of 2 GiB")
    print("at it", flush=True)
    {what}
    return Facts("another")
Store({store.path!r}).make({KEY!r}, fill)
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("who", ["the next that makes it", "somebody who looks"])
def test_killed_half_way_leaves_nothing_after_the_next(store: Store, who: str) -> None:
    with program(store, "time.sleep(60)") as maker:
        assert maker.stdout
        assert maker.stdout.readline() == "at it\n"
        assert len(left(store)) == 1
        store.tidy()  # it is still at it
        assert len(left(store)) == 1
        maker.kill()
        maker.wait()
    if who == "somebody who looks":
        store.tidy()
    else:
        assert store.make(KEY, filled).facts.source == "docker://true:1"
    assert left(store) == []


def test_who_waits_sees_how_far_it_is(store: Store) -> None:
    said: list[str] = []
    with program(store, "time.sleep(1)") as maker:
        assert maker.stdout
        assert maker.stdout.readline() == "at it\n"
        entry = store.make(KEY, never, said.append)
    assert entry.facts.source == "another"
    assert set(said) == {"1 of 2 GiB"}


def test_many_at_once_make_it_once(store: Store) -> None:
    made: list[str] = []

    def slow(directory: str, lock: Lock) -> Facts:
        made.append(directory)
        time.sleep(0.2)
        return filled(directory, lock)

    threads = [threading.Thread(target=store.make, args=(KEY, slow)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_without_locks_the_faster_one_counts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines whose locks do not reach each other."""

    def refused(fd: int, kind: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)

    def overtaken(directory: str, lock: Lock) -> Facts:
        Store(store.path).make(KEY, filled)
        os.makedirs(f"{directory}/rootfs")
        return Facts("slower")

    assert store.make(KEY, overtaken).facts.source == "docker://true:1"
    assert left(store) == []


def test_what_is_used_stays(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "c1").mkdir(parents=True)
    store.make(KEY, filled)
    gone = Lease("c1", str(root), replace(myself(), pid=1, started=1))
    assert store.lease(KEY, gone)
    assert store.remove(KEY) == [gone]  # its record is there
    assert store.find(KEY)
    (root / "c1").rmdir()
    assert store.users(KEY) == []  # neither record nor process
    mine = lease_of(str(root), "c2")
    assert store.lease(KEY, mine)  # this process has not made its record yet
    assert store.remove(KEY) == [mine]
    store.give_back(KEY, mine)
    assert store.remove(KEY) == []
    assert store.find(KEY) is None
    assert store.lease(KEY, mine) is None
    assert left(store) == []
    assert os.listdir(f"{store.path}/leases") == []


def test_a_lease_is_given_back_by_its_taker(store: Store, tmp_path: Path) -> None:
    """A container may have been replaced by one with its id and its image."""
    store.make(KEY, filled)
    mine = lease_of(str(tmp_path), "c1")
    theirs = replace(mine, taker=replace(myself(), pid=1, started=0))
    store.lease(KEY, mine)
    store.lease(KEY, theirs)
    store.give_back(KEY, mine)
    assert store.users(KEY) == [theirs]


def test_leases_of_another_machine_hold_for_a_month(store: Store) -> None:
    store.make(KEY, filled)
    there = Lease("c1", "/run/scrun", replace(myself(), host="elsewhere"))
    assert store.lease(KEY, there)
    assert store.users(KEY) == [there]
    folder = Path(store.path, "leases", KEY)
    (file,) = folder.iterdir()
    month = time.time() - 31 * 86400
    os.utime(file, (month, month))
    assert store.users(KEY) == []
    (folder / "unreadable").write_text("{")
    assert [lease.id for lease in store.users(KEY)] == ["unreadable"]


def test_a_use_is_remembered(store: Store, tmp_path: Path) -> None:
    entry = store.make(KEY, filled)
    os.utime(f"{entry.directory}/scrun-image.json", (1, 1))
    assert entry.used() == 1
    store.lease(KEY, lease_of(str(tmp_path), "c1"))
    assert time.time() - entry.used() < 60


@pytest.mark.parametrize("key", ["", "..", "a/b", ".x", "a.b", "x" * 129])
def test_keys_are_names(store: Store, key: str) -> None:
    with pytest.raises(ImageError, match="is not a valid name in a store of images"):
        store.find(key)


def test_a_store_of_others_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ImageError, match=r"everybody may write to it.*\[images\] store"):
        Store(str(shared))
    (tmp_path / "file").write_text("")
    with pytest.raises(ImageError, match="File exists"):
        Store(str(tmp_path / "file"))


def test_roots_store_is_not_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else could write to it, and neither could we."""
    owner = os.geteuid()
    monkeypatch.setattr("scrun.images.store.replaceable", lambda path: "")
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with pytest.raises(ImageError, match=f"belongs to uid {owner}"):
        Store(str(tmp_path / "store"))


def test_a_further_store_that_others_write_to_is_not_read(store: Store, tmp_path: Path) -> None:
    store.make(KEY, filled)
    found = find_elsewhere([str(tmp_path / "missing"), store.path], KEY)
    assert found is not None
    assert found.directory == f"{store.path}/{KEY}"
    os.chmod(store.path, 0o777)
    assert find_elsewhere([store.path], KEY) is None


def test_nothing_is_removed_while_somebody_has_the_lock(store: Store, tmp_path: Path) -> None:
    """Who is about to lease it has looked whether it is there: then it is."""
    store.make(KEY, filled)
    answers: list[list[Lease]] = []
    remover = threading.Thread(target=lambda: answers.append(store.remove(KEY)))
    with locked(f"{store.path}/locks/{KEY}", shared=True):
        remover.start()
        time.sleep(0.5)
        assert store.find(KEY)
        assert answers == []
        lease = lease_of(str(tmp_path), "c1")
        assert store.lease(KEY, lease)
    remover.join()
    assert answers == [[lease]]
    assert store.find(KEY)


def test_names_are_a_store_of_their_own(store: Store) -> None:
    assert store.names().make("work", filled).directory == f"{store.path}/names/work"
    assert store.entries() == []
    assert [entry.key for entry in store.names().entries()] == ["work"]
