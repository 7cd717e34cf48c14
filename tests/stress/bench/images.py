"""What a container of an image costs with rootless podman on overlay, beside one of busybox.

One storage is where the nodes see it, the other is mounted on this machine alone. This runs as
root, which makes that mount, and calls podman as the user.
"""

import contextlib
import io
import os
import resource
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.harness.image import owned_by_root
from tests.harness.podman import RUN, Podman
from tests.harness.processes import processes
from tests.harness.site import Site
from tests.harness.users import User
from tests.stress.bench.figures import Goal, Times, table

HIDDEN = 'mount --bind "$0" "$1" && shift && exec "$@"'
SMALL, IMAGE, MANY = "busybox", "image of 230 MB, 10,000 files", "image of {:,} files"
FIRST = "first start"
PLACES = ("visible", "not visible")
_FILES, _SIZE = 10_000, 23_000
_MEGABYTE = 1 << 20


class Images:
    """Images on both storages."""

    def __init__(self, user: User, many: int) -> None:
        """Know what to measure.

        Args:
            user: Whose containers they are.
            many: How many files the largest image has; 0: there is none.
        """
        self.times = Times()
        self._user = user
        self._many = many
        self._moved: dict[str, float] = {}

    def measure(self, rounds: int) -> None:
        """Take all measurements, the places one after the other."""
        for place in PLACES:
            with _podman(self._user, hidden=place != PLACES[0]) as podman:
                self._image(podman, "large", _FILES, _SIZE)
                self._start(podman, SMALL, "")
                self._start(podman, "large", f"{FIRST}, {IMAGE}, {place}")
                for _ in range(rounds):
                    self._start(podman, SMALL, f"{SMALL}, {place}")
                    self._start(podman, "large", f"{IMAGE}, {place}")
                if self._many:
                    self._measure_many(podman, place, rounds)

    def _measure_many(self, podman: Podman, place: str, rounds: int) -> None:
        name = MANY.format(self._many)
        self._image(podman, "many", self._many, 100)
        self._start(podman, "many", f"{FIRST}, {name}, {place}")
        for _ in range(max(2, rounds // 4)):
            moved = self._start(podman, "many", f"{name}, {place}")
            self._moved[f"{name}, {place}"] = moved

    def _image(self, podman: Podman, name: str, files: int, size: int) -> None:
        """Import an image of that many files beside busybox."""
        path = podman.site.base / f"{name}.tar"
        content = os.urandom(size)
        with tarfile.open(path, "w") as tar:
            tar.add(podman.site.rootfs, ".", filter=owned_by_root)
            for number in range(files):
                member = tarfile.TarInfo(f"./opt/{number // 500}/{number}")
                member.size = size
                member.mode = 0o644
                tar.addfile(member, io.BytesIO(content))
        self._user.give(path)
        podman.must("import", str(path), name, timeout=1800)
        path.unlink()

    def _start(self, podman: Podman, image: str, what: str) -> float:
        """Run `true`; return the bytes that podman and scrun have read from disks and written."""
        before = _moved(podman)
        began = time.perf_counter()
        podman.must(*RUN, "--rm", image, "true", timeout=1800)
        taken = time.perf_counter() - began
        if what:
            self.times.add(what, taken)
        after = _moved(podman)
        return sum(moved - before.get(pid, 0) for pid, moved in after.items())

    def table(self) -> str:
        """Return what was read and written here, in MiB."""
        rows = [[what, f"{moved / _MEGABYTE:.1f}"] for what, moved in self._moved.items()]
        return table(["podman and scrun read and wrote for one start of", "MiB"], rows)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        found = []
        for place in PLACES:
            small = self.times.median(f"{SMALL}, {place}")
            second = self.times.median(f"{IMAGE}, {place}") / small
            found.append(Goal(f"{IMAGE}, {place}, second start", SMALL, second, 1.15))
            if self._many:
                name = f"{MANY.format(self._many)}, {place}"
                found.append(Goal(name, SMALL, self.times.median(name) / small, 1.3))
                moved = self._moved[name] / _MEGABYTE
                found.append(Goal(f"{name}, MiB here", "nothing", moved, 10))
        first = f"{FIRST}, {IMAGE}, {PLACES[0]}"
        small = self.times.median(f"{SMALL}, {PLACES[0]}")
        found.append(Goal(first, SMALL, self.times.median(first) / small, 1.3))
        return found


@contextlib.contextmanager
def _podman(user: User, *, hidden: bool) -> Iterator[Podman]:
    site = Site("slurm", user)
    before: tuple[str, ...] = ()
    for name in ("hidden", "s"):
        (site.base / name).mkdir()
        user.give(site.base / name)
    if hidden:
        places = (f"{site.base}/hidden", f"{site.base}/s")
        before = ("unshare", "--mount", "sh", "-c", HIDDEN, *places)
    settings = f'[images]\nstore = "{site.base}/images"\n'
    try:
        with Podman(site, settings, before, "overlay") as podman:
            yield podman
            podman.run("unshare", "rm", "-rf", f"{site.base}/images", timeout=3600)
    finally:
        site.close()


def _moved(podman: Podman) -> dict[int, float]:
    """Return what supervisors, and under 0 the calls of podman, have moved by disks."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    calls = (used.ru_inblock + used.ru_oublock) * 512.0
    return {0: calls, **{pid: _moved_by(pid) for pid in _supervisors(podman)}}


def _supervisors(podman: Podman) -> list[int]:
    """Return the supervisors of podman's containers, each of one of them."""
    root = f"{podman.site.base}/x/scrun"
    return [
        process.pid
        for process in processes()
        if any("supervisor" in word for word in process.argv[:6]) and root in process.argv
    ]


def _moved_by(pid: int) -> float:
    """Return what a process, and those that it has waited for, have moved by disks."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0.0
    found = dict(line.split(": ") for line in lines)
    return float(found["read_bytes"]) + float(found["write_bytes"])
