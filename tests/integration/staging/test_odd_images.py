"""Odd but valid images: what a program sees of one is what it sees with podman and crun.

docs/internals/run-image.md has what is different on purpose, and `_as_decided` leaves it out.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.life import TIMEOUT
from tests.harness.odd_images import KINDS, Odd, odd_image
from tests.harness.program import run_program
from tests.harness.site import CGROUP2, Site
from tests.harness.users import ordinary, root

pytestmark = pytest.mark.covers("scrun run: of an image")

# mounted by podman for networks, and for programs that ask whether they are in a container
_MOUNTS_OF_PODMAN = ("/run/.containerenv", "/etc/hostname", "/dev/mqueue", "/sys/fs/cgroup")
_VARIABLES_OF_PODMAN = ("container=podman", "HOSTNAME=")
_KERNEL = ("/proc", "/sys", "/dev")
# crun finds cgroups of version 2 only there
_CGROUP2 = 'mount -t cgroup2 cgroup /sys/fs/cgroup && exec "$@"'


_SLURM = ("SLURM_", "SLURMD_", "CUDA_VISIBLE_DEVICES", "TMPDIR=")
_CALLERS = ("0", "65534")  # as a container sees them
PLACES = ("local-root", "local-user", "slurm-root", "slurm-user")


class Podman:
    """podman with crun, as root on this machine; each image is run once."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._seen: dict[tuple[str, int], tuple[int, list[str]]] = {}

    def _call(self, *words: str) -> "subprocess.CompletedProcess[str]":
        storage = ("--root", f"{self._base}/s", "--runroot", f"{self._base}/r")
        how = ("--storage-driver", "overlay", "--runtime", "crun", "--cgroup-manager", "cgroupfs")
        podman = ("podman", *storage, *how, "--events-backend", "file", *words)
        return run_program(
            ["unshare", "--mount", "sh", "-c", _CGROUP2, "sh", *podman],
            env=root().environment,
            cwd=self._base,
        )

    def run(self, image: Odd, which: tuple[str, int]) -> tuple[int, list[str]]:
        """Run it, and return the status and what it printed."""
        if which not in self._seen:
            pulled = self._call("pull", "--quiet", f"oci:{image.reference}")
            assert pulled.returncode == 0, pulled.stderr
            how = ("--rm", "--network", "host", "--cgroups", "disabled")
            done = self._call("run", *how, pulled.stdout.strip(), *image.command)
            lines = done.stdout.splitlines() or done.stderr.splitlines()
            self._seen[which] = done.returncode, lines
        return self._seen[which]

    def close(self) -> None:
        """Remove what it has kept."""
        self._call("system", "reset", "--force")


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    made = Podman(tmp_path_factory.mktemp("podman"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    engine, _, who = request.param.partition("-")
    made = Site(engine, root() if who == "root" else ordinary())
    with (made.base / "scrun.toml").open("a") as settings:
        settings.write(f'[images]\nstore = "{made.base}/b/store"\n')
    yield made
    made.clear()
    made.close()


def _as_decided(lines: list[str], image: Odd, site: Site) -> list[str]:
    """Leave out what is different on purpose."""
    left = (*_MOUNTS_OF_PODMAN, *image.volumes)
    tops = [line.removeprefix("top: ") for line in lines if line.startswith("top: ")]
    left_out: dict[str, Callable[[str], bool]] = {
        # each directory at the top is an overlay of its own
        "mount": lambda value: value in (*tops, *left) or value.startswith(_KERNEL),
        "env": lambda value: value.startswith((*_VARIABLES_OF_PODMAN, *_SLURM)),
    }
    own = {line.rpartition(":")[2] for line in lines if line.startswith("user: ")}
    one_id = site.user.uid and "user: 0:0" not in lines
    kept = []
    for line in lines:
        what, _, value = line.partition(": ")
        if what == "groups":  # podman names the user's own again, and crun keeps the caller's
            groups = set(value.split())
            value = " ".join(sorted(groups & own if one_id else groups - ({*_CALLERS} - own)))
        if what == "entry" and site.user.uid:  # all files of the store are the user's
            value = value.rpartition("|")[0]
        if what not in left_out or not left_out[what](value):
            kept.append(f"{what}: {value}")
    return sorted(kept)


def _compare(podman: Podman, site: Site, kind: str, number: int) -> None:
    base = site.base / "b" / f"{kind}-{number}"
    base.mkdir()
    image = odd_image(base, kind, number)
    site.user.give(base)
    status, lines = podman.run(image, (kind, number))
    # an ordinary user's runc adds no groups
    before = CGROUP2 if site.engine == "local" and site.user.uid else ()
    words = [*site.user.prefix, *site.command, "run", f"oci:{image.reference}", *image.command]
    done = run_program([*before, *words], env=site.environment, cwd=site.base, timeout=TIMEOUT)
    own_lines = done.stdout.splitlines() or done.stderr.splitlines()
    assert _as_decided(own_lines, image, site) == _as_decided(lines, image, site)
    assert done.returncode == status
    shutil.rmtree(base)


_FEW = [(PLACES[number % len(PLACES)], kind) for number, kind in enumerate(KINDS)]


@pytest.mark.parametrize(("site", "kind"), _FEW, indirect=["site"])
def test_one_of_each_kind(podman: Podman, site: Site, kind: str) -> None:
    """In one of the places."""
    _compare(podman, site, kind, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("site", PLACES, indirect=True)
def test_all_of_each_kind(podman: Podman, site: Site, kind: str, number: int) -> None:
    _compare(podman, site, kind, number)
