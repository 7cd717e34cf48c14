"""The store of images at random moments: processes are killed, two hosts meet, a disk is full.

The first of each are the same at every run. SCRUN_STORE_MOMENTS is their number, 500 for a long
run, and SCRUN_SEED another seed.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.core.errors import ImageError
from scrun.images.leases import Lock
from scrun.images.store import Facts, Store
from tests import CHECKOUT
from tests.harness.layers import listing
from tests.harness.places import mounted

SEED = int(os.environ.get("SCRUN_SEED") or 1)
MOMENTS = int(os.environ.get("SCRUN_STORE_MOMENTS") or 8)
KEY = "layer-1"
# As an image gets into the store; `hosts` is for two machines whose locks do not reach each other.
MAKER = """
import errno, fcntl, os, subprocess, sys
sys.path[:0] = [sys.argv[1]]
from scrun.images.store import Facts, Store
store, layer, hosts = sys.argv[2:]
if hosts == "hosts":
    def refused(fd, kind):
        raise OSError(errno.ENOLCK, "No locks available")
    fcntl.flock = refused
def fill(directory, lock):
    os.mkdir(directory + "/rootfs")
    subprocess.run(["cp", "-a", layer + "/.", directory + "/rootfs"], check=True)
    return Facts(source=str(os.getpid()))
print("ready", flush=True)
sys.stdin.readline()
entry = Store(store).make("layer-1", fill)
print(entry.facts.source, flush=True)
"""


class NoRoom(ImageError):
    """The disk is full."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory: on a disk each image waits until all is written that others write."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    made = tmp_path / "layer"
    chance = random.Random(SEED)
    for folder in range(8):
        (made / str(folder)).mkdir(parents=True)
        for number in range(40):
            content = chance.randbytes(chance.randrange(9000))
            (made / str(folder) / str(number)).write_bytes(content)
    (made / "link").symlink_to("0/1")
    return made


def maker(store: Path, layer: Path, *before: str, hosts: bool = False) -> subprocess.Popen[str]:
    """Start what makes the image, up to its beginning."""
    words = [str(CHECKOUT), str(store), str(layer)]
    made = subprocess.Popen(
        [*before, sys.executable, "-c", MAKER, *words, "hosts" if hosts else "one"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    return made


def go(made: subprocess.Popen[str]) -> None:
    assert made.stdin is not None
    made.stdin.write("\n")
    made.stdin.flush()


def filled(layer: Path, directory: str, lock: Lock) -> Facts:
    del lock
    os.mkdir(f"{directory}/rootfs")
    argv = ["cp", "-a", f"{layer}/.", f"{directory}/rootfs"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "No space left on device" in done.stderr:
        raise NoRoom(done.stderr)
    assert done.returncode == 0, done.stderr
    return Facts("next")


def left(store: Store) -> list[str]:
    return os.listdir(f"{store.path}/tmp")


@pytest.mark.timeout(1200)
def test_killed_at_any_moment(place: Path, layer: Path) -> None:
    """No broken image is there afterwards, and nothing else after the next run."""
    whole = listing(layer)
    path = place / "store"
    with maker(path, layer) as made:
        began = time.monotonic()
        go(made)
        assert made.wait() == 0
        takes = time.monotonic() - began
    store = Store(str(path))
    assert not store.remove(KEY)
    finished = 0
    for number in range(MOMENTS):
        moment = random.Random(f"{SEED}:{number}").uniform(0, takes * 1.1)
        with maker(path, layer) as made:
            go(made)
            time.sleep(moment)
            os.killpg(made.pid, signal.SIGKILL)
        entry = store.find(KEY)
        finished += entry is not None
        if entry is not None:
            assert listing(Path(entry.rootfs)) == whole, (SEED, number, moment)
        entry = store.make(KEY, lambda directory, lock: filled(layer, directory, lock))
        assert listing(Path(entry.rootfs)) == whole, (SEED, number, moment)
        assert left(store) == []
        assert not store.remove(KEY)
    print(f"killed {MOMENTS} times within {takes:.2f} s, {finished} had finished")
    assert sorted(os.listdir(path)) == ["leases", "locks", "tags", "tmp"]


@pytest.mark.parametrize("hosts", [False, True], ids=["locks", "no locks"])
@pytest.mark.by_root
def test_two_hosts_at_once(place: Path, layer: Path, *, hosts: bool) -> None:
    """With locks one of them makes it; without, both, and one is faster. Some are killed."""
    whole = listing(layer)
    path = place / "store"
    store = Store(str(path))
    for number in range(max(2, MOMENTS // 4)):
        chance = random.Random(f"{SEED}:hosts {number}")
        names = [
            ("unshare", "--uts", "--mount", "sh", "-c", f'hostname {name}; exec "$@"', "sh")
            for name in ("one", "two")
        ]
        both = [maker(path, layer, *before, hosts=hosts) for before in names]
        for made in both:
            go(made)
        killed = chance.random() < 0.5
        if killed:
            time.sleep(chance.uniform(0, 0.3))
            os.killpg(both[0].pid, signal.SIGKILL)
        said = []
        for made in both[killed:]:
            out, err = made.communicate(timeout=60)
            assert made.returncode == 0, err
            said.append(out.strip())
        if killed:
            both[0].communicate()
        assert len(set(said)) == 1
        entry = store.find(KEY)
        assert entry is not None
        assert listing(Path(entry.rootfs)) == whole
        # what another host may still be at is not removed by this one, for a day
        assert all(killed and name.startswith(f"{KEY}.one.") for name in left(store))
        assert not store.remove(KEY)
        for name in left(store):
            subprocess.run(["rm", "-rf", path / "tmp" / name], check=True)


@pytest.mark.by_root
def test_a_disk_that_is_full_at_any_moment(place: Path, layer: Path) -> None:
    whole = listing(layer)
    path = place / "store"
    made = 0
    with mounted(path, "-o", "size=4m,mode=700"):
        store = Store(str(path))
        for number in range(MOMENTS):
            room = random.Random(f"{SEED}:full {number}").randrange(3 << 20)
            (path / "filler").write_bytes(bytes((4 << 20) - 65536 - room))
            entry = None
            with contextlib.suppress(NoRoom):
                entry = store.make(KEY, lambda directory, lock: filled(layer, directory, lock))
            if entry is None:
                assert store.find(KEY) is None, (SEED, number)
            else:
                made += 1
                assert listing(Path(entry.rootfs)) == whole, (SEED, number)
                assert not store.remove(KEY)
            assert left(store) == []
            (path / "filler").unlink()
        assert 0 < made < MOMENTS
