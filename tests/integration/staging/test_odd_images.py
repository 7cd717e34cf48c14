"""Odd but valid images: what a program sees of one is what it sees with podman and crun.

docs/decisions/run-image.md has what is different on purpose, and `_as_decided` leaves it out.
"""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.odd_images import KINDS, Odd, odd_image
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.users import root

pytestmark = pytest.mark.covers("scrun run: of an image")

# mounted by podman for networks, and for programs that ask whether they are in a container
_MOUNTS_OF_PODMAN = ("/run/.containerenv", "/etc/hostname", "/dev/mqueue", "/sys/fs/cgroup")
_VARIABLES_OF_PODMAN = ("container=podman", "HOSTNAME=")
_KERNEL = ("/proc", "/sys", "/dev")
# crun finds cgroups of version 2 only there
_CGROUP2 = 'mount -t cgroup2 cgroup /sys/fs/cgroup && exec "$@"'


class Both:
    """podman with crun, and scrun, both as root on this machine."""

    def __init__(self, base: Path, site: Site) -> None:
        self._base, self._site = base, site

    def _podman(self, *words: str) -> "subprocess.CompletedProcess[str]":
        storage = ("--root", f"{self._base}/s", "--runroot", f"{self._base}/r")
        how = ("--storage-driver", "overlay", "--runtime", "crun", "--cgroup-manager", "cgroupfs")
        podman = ("podman", *storage, *how, "--events-backend", "file", *words)
        return run_program(
            ["unshare", "--mount", "sh", "-c", _CGROUP2, "sh", *podman],
            env=self._site.environment,
            cwd=self._base,
        )

    def with_podman(self, image: Odd) -> tuple[int, list[str]]:
        """Run it, and return the status and what it printed."""
        pulled = self._podman("pull", "--quiet", f"oci:{image.reference}")
        assert pulled.returncode == 0, pulled.stderr
        how = ("--rm", "--network", "host", "--cgroups", "disabled")
        done = self._podman("run", *how, pulled.stdout.strip(), *image.command)
        return done.returncode, done.stdout.splitlines() or done.stderr.splitlines()

    def with_scrun(self, image: Odd) -> tuple[int, list[str]]:
        """Run it, and return the status and what it printed."""
        done = self._site.run("run", f"oci:{image.reference}", *image.command)
        return done.returncode, done.stdout.splitlines() or done.stderr.splitlines()

    def close(self) -> None:
        """Remove what podman has kept."""
        self._podman("system", "reset", "--force")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    site = Site("local", root())
    store = site.base / "s"
    with (site.base / "scrun.toml").open("a") as settings:
        settings.write(f'[images]\nstore = "{store}"\n')
    made = Both(tmp_path_factory.mktemp("podman"), site)
    yield made
    made.close()
    site.clear()
    site.close()


def _as_decided(lines: list[str], image: Odd) -> list[str]:
    """Leave out what is different on purpose."""
    left = (*_MOUNTS_OF_PODMAN, *image.volumes)
    tops = [line.removeprefix("top: ") for line in lines if line.startswith("top: ")]
    left_out: dict[str, Callable[[str], bool]] = {
        # each directory at the top is an overlay of its own
        "mount": lambda value: value in (*tops, *left) or value.startswith(_KERNEL),
        "env": lambda value: value.startswith(_VARIABLES_OF_PODMAN),
    }
    kept = []
    for line in lines:
        what, _, value = line.partition(": ")
        if what == "groups":  # podman names the user's own group again
            value = " ".join(sorted(set(value.split())))
        if what not in left_out or not left_out[what](value):
            kept.append(f"{what}: {value}")
    return sorted(kept)


def _compare(both: Both, image: Odd) -> None:
    status, lines = both.with_podman(image)
    own_status, own_lines = both.with_scrun(image)
    assert (own_status, _as_decided(own_lines, image)) == (status, _as_decided(lines, image))


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_each_kind(both: Both, tmp_path: Path, kind: str) -> None:
    _compare(both, odd_image(tmp_path, kind, 0))


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(1, 10))
@pytest.mark.parametrize("kind", KINDS)
def test_all_of_each_kind(both: Both, tmp_path: Path, kind: str, number: int) -> None:
    _compare(both, odd_image(tmp_path, kind, number))
