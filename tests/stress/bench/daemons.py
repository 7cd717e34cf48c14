"""What a container of an image costs with docker and containerd on overlay, as root.

Their storage is where the nodes see it, or is mounted on this machine alone; of that the store has
squashfs images.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.containerd import Containerd
from tests.harness.daemons import Daemon
from tests.harness.docker import Docker
from tests.harness.image import image_archive
from tests.harness.overlays import with_store
from tests.stress.bench.figures import Goal, Times
from tests.stress.bench.images import (
    COMPRESSION,
    FILES,
    FIRST,
    IMAGE,
    PLACES,
    SIZE,
    SMALL,
    SQUASHFS,
    UNSEEN,
    VISIBLE,
)

_LARGE = "large"
_LONG = 600
_MAKE: dict[str, Callable[[bool], Daemon]] = {
    "docker": lambda hidden: Docker(storage="overlay2", hidden=hidden),
    "containerd": lambda hidden: Containerd(snapshotter="overlayfs", hidden=hidden),
}


class DaemonImages:
    """Images of both engines, in both places."""

    def __init__(self) -> None:
        self.times = Times()
        self._copied: dict[str, int] = {}

    def measure(self, rounds: int) -> None:
        """Take all measurements, one engine and place after the other."""
        for engine, make in _MAKE.items():
            for place in PLACES:
                with _storage(make, place) as daemon:
                    self._measure(daemon, f"{engine}, {place}", rounds)
        self._pack()

    def _measure(self, daemon: Daemon, where: str, rounds: int) -> None:
        archive = str(image_archive(daemon.site, _LARGE, FILES, SIZE))
        if isinstance(daemon, Containerd):
            daemon.must("image", "import", "--snapshotter", "overlayfs", archive, timeout=_LONG)
        else:
            daemon.must("load", "--input", archive, timeout=_LONG)
        self._start(daemon, SMALL, "")
        self._start(daemon, _LARGE, f"{FIRST}, {IMAGE}, {where}")
        for _ in range(rounds):
            self._start(daemon, SMALL, f"{SMALL}, {where}")
            self._start(daemon, _LARGE, f"{IMAGE}, {where}")
        self._copied[where] = len([*(daemon.base / "images").glob("layer-*")])

    def _start(self, daemon: Daemon, image: str, what: str) -> None:
        if isinstance(daemon, Containerd):
            name = f"docker.io/library/{image}:latest"
            words = (*daemon.run_options, "--rm", name, f"c{time.monotonic_ns()}", "true")
        else:
            words = ("run", "--rm", "--network", "host", image, "true")
        began = time.perf_counter()
        daemon.must(*words, timeout=_LONG)
        if what:
            self.times.add(what, time.perf_counter() - began)

    def _pack(self) -> None:
        """Make an image of as many files by mksquashfs alone."""
        folder = Path("/var/tmp") / f"scrun-bench-{os.getpid()}"
        try:
            for number in range(FILES):
                path = folder / str(number // 500) / str(number)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(os.urandom(SIZE))
            words = ["mksquashfs", str(folder), f"{folder}.sqfs", *COMPRESSION, "-quiet"]
            began = time.perf_counter()
            subprocess.run([*words, "-no-progress"], check=True, stdout=subprocess.DEVNULL)
            self.times.add(SQUASHFS, time.perf_counter() - began)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            Path(f"{folder}.sqfs").unlink(missing_ok=True)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        found = []
        for engine in _MAKE:
            for place in PLACES:
                where = f"{engine}, {place}"
                later = self.times.median(f"{IMAGE}, {where}")
                small = self.times.median(f"{SMALL}, {where}")
                found.append(Goal(f"{IMAGE}, {where}, second start", SMALL, later / small, 1.15))
                first = self.times.median(f"{FIRST}, {IMAGE}, {where}") - later
                ratio = first / self.times.median(SQUASHFS)
                found.append(Goal(f"{FIRST}, {where}, less a later one", SQUASHFS, ratio, 1.5))
            copied = self._copied[f"{engine}, {VISIBLE}"]
            found.append(Goal(f"{engine}, {VISIBLE}, layers copied", "none", copied, 0))
        return found


@contextmanager
def _storage(make: Callable[[bool], Daemon], place: str) -> Iterator[Daemon]:
    daemon = make(place == UNSEEN)
    try:
        with_store(daemon, seen=place == VISIBLE)
        yield daemon
    finally:
        daemon.close()
