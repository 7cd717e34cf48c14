"""What a container of an image costs with rootless podman on overlay, beside one of busybox.

One storage is where the nodes see it, the other is mounted on this machine alone; of that the
store has squashfs images. This runs as root, which makes that mount, and calls podman as the user.
"""

import contextlib
import resource
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.harness.image import add_files, owned_by_root
from tests.harness.podman import RUN, Podman
from tests.harness.processes import processes
from tests.harness.site import Site
from tests.harness.squashfs import fuse_for_all
from tests.harness.users import User
from tests.stress.bench.figures import Goal, Times, table

HIDDEN = 'mount --bind "$0" "$1" && shift && exec "$@"'
SMALL, IMAGE, MANY = "busybox", "image of 230 MB, 10,000 files", "image of {:,} files"
FIRST = "first start"
SQUASHFS = "mksquashfs of that image"
VISIBLE, UNSEEN = PLACES = ("visible", "not visible")
BUILD = "`podman build` of {} steps on {}"
_STEPS = 20
FILES, SIZE = 10_000, 23_000
_MEGABYTE = 1 << 20
_LONG = 3600
COMPRESSION = ("-comp", "zstd", "-Xcompression-level", "3")


class Images:
    """Images on both storages."""

    def __init__(self, user: User, many: int, gib: int, crowd: int) -> None:
        """Know what to measure.

        Args:
            user: Whose containers they are.
            many: How many files the largest image has; 0: there is none.
            gib: How many GiB these have together; 0: 100 bytes each.
            crowd: How many containers of a new image begin at once; 0: none.
        """
        self.times = Times()
        self._user = user
        self._many = many
        self._size = (gib << 30) // many if many and gib else 100
        self._crowd = crowd
        self._moved: dict[str, float] = {}
        self._made = 0
        self._failed = 0

    def measure(self, rounds: int) -> None:
        """Take all measurements, the places one after the other."""
        for place in PLACES:
            with _podman(self._user, place) as podman:
                self._image(podman, "large", FILES, SIZE)
                self._start(podman, SMALL, "")
                self._start(podman, "large", f"{FIRST}, {IMAGE}, {place}")
                for _ in range(rounds):
                    self._start(podman, SMALL, f"{SMALL}, {place}")
                    self._start(podman, "large", f"{IMAGE}, {place}")
                if place == UNSEEN:
                    self._pack(podman)
                if self._many:
                    self._measure_many(podman, place, rounds)
        if self._crowd:
            with _podman(self._user, UNSEEN) as podman:
                self._begin_at_once(podman)
        self._build(max(1, rounds // 5))

    def _pack(self, podman: Podman) -> None:
        """Make an image of the same files by mksquashfs alone."""
        image = podman.site.base / "bare.sqfs"
        folder = podman.must("unshare", "podman", *podman.command[1:5], "image", "mount", "large")
        words = ("mksquashfs", folder.strip(), str(image), *COMPRESSION, "-noappend")
        began = time.perf_counter()
        podman.must("unshare", *words, "-quiet", "-no-progress", timeout=600)
        self.times.add(SQUASHFS, time.perf_counter() - began)
        podman.must("unshare", "podman", *podman.command[1:5], "image", "unmount", "large")
        image.unlink()

    def _begin_at_once(self, podman: Podman) -> None:
        """Begin many containers of an image that the store does not have."""
        self._image(podman, "new", FILES, 100)
        with ThreadPoolExecutor(self._crowd) as pool:
            words = (*RUN, "--rm", "new", "true")
            done = list(pool.map(lambda _: podman.run(*words, timeout=1800), range(self._crowd)))
        self._failed = sum(each.returncode != 0 for each in done)
        for each in done:
            if each.returncode:
                print(each.stderr.strip().splitlines()[-1:])
        self._made = len(list((podman.site.base / "images").glob("layer-*")))

    def _build(self, rounds: int) -> None:
        """Build an image of many steps on overlay, and on vfs."""
        steps = "".join(f"RUN echo {number} >/f{number}\n" for number in range(_STEPS))
        for storage in ("vfs", "overlay"):
            with _podman(self._user, VISIBLE, storage) as podman:
                folder = podman.site.base / "steps"
                folder.mkdir()
                (folder / "Containerfile").write_text(f"FROM {SMALL}\n{steps}")
                self._user.give(folder)
                options = ("--isolation", "oci", "--network", "host", *RUN[3:], "--no-cache")
                for _ in range(rounds):
                    began = time.perf_counter()
                    podman.must("build", *options, str(folder), timeout=1800)
                    self.times.add(BUILD.format(_STEPS, storage), time.perf_counter() - began)

    def _measure_many(self, podman: Podman, place: str, rounds: int) -> None:
        name = MANY.format(self._many)
        self._image(podman, "many", self._many, self._size)
        self._start(podman, "many", f"{FIRST}, {name}, {place}")
        for _ in range(max(2, rounds // 4)):
            moved = self._start(podman, "many", f"{name}, {place}")
            self._moved[f"{name}, {place}"] = moved

    def _image(self, podman: Podman, name: str, files: int, size: int) -> None:
        """Import an image of that many files beside busybox."""
        path = podman.site.base / f"{name}.tar"
        with tarfile.open(path, "w") as tar:
            tar.add(podman.site.rootfs, ".", filter=owned_by_root)
            add_files(tar, files, size)
        self._user.give(path)
        podman.must("import", str(path), name, timeout=_LONG)
        path.unlink()

    def _start(self, podman: Podman, image: str, what: str) -> float:
        """Run `true`; return the bytes that podman and scrun have read from disks and written."""
        before = _moved(podman)
        began = time.perf_counter()
        podman.must(*RUN, "--rm", image, "true", timeout=_LONG)
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
        first = f"{FIRST}, {IMAGE}, {VISIBLE}"
        small = self.times.median(f"{SMALL}, {VISIBLE}")
        found.append(Goal(first, SMALL, self.times.median(first) / small, 1.3))
        later = self.times.median(f"{IMAGE}, {UNSEEN}")
        first = f"{FIRST}, {IMAGE}, {UNSEEN}"
        more = (self.times.median(first) - later) / self.times.median(SQUASHFS)
        found.append(Goal(f"{first}, less a later one", SQUASHFS, more, 1.5))
        if self._crowd:
            what = f"{self._crowd} containers of a new image at once"
            found.append(Goal(f"{what}, layers copied", "one", self._made, 1))
            found.append(Goal(f"{what}, failed", "none", self._failed, 0))
        overlay, vfs = (BUILD.format(_STEPS, storage) for storage in ("overlay", "vfs"))
        ratio = self.times.median(overlay) / self.times.median(vfs)
        return [*found, Goal(overlay, vfs, ratio, 1.3)]


@contextlib.contextmanager
def _podman(user: User, place: str, storage: str = "overlay") -> Iterator[Podman]:
    site = Site("slurm", user)
    del site.environment["SCRUN_WATCHDOG"]
    before: tuple[str, ...] = ()
    for name in ("hidden", "s"):
        (site.base / name).mkdir()
        user.give(site.base / name)
    if place == UNSEEN:
        fuse_for_all()
        places = (f"{site.base}/hidden", f"{site.base}/s")
        before = ("unshare", "--mount", "sh", "-c", HIDDEN, *places)
    settings = f'[images]\nstore = "{site.base}/images"\n'
    try:
        with Podman(site, settings, before, storage) as podman:
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
