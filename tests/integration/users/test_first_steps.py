"""The commands of README.md and of the tutorial, as they stand there."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.podman import Podman, rootless_podman
from tests.harness.program import run_program
from tests.harness.session import Step, agrees, play, steps


@dataclass
class Desk:
    """A user who has scrun, podman with an image, and a directory to work in."""

    podman: Podman
    place: Path

    @property
    def environment(self) -> dict[str, str]:
        base = self.podman.site.base
        return {
            **self.podman.site.user.environment,
            "HOME": str(self.place),
            "XDG_RUNTIME_DIR": f"{base}/x",
            "TMPDIR": str(base),
            "SLURM_CONF": cluster.slurm_conf(),
        }

    def play(self, page: str) -> None:
        """Do what a page does: what needs the checkout as root, the rest as the user."""
        given = steps(CHECKOUT / page)
        setups = [step for step in given if "tools/" in step.command]
        path = f"{self.place}/bin:{self.set_up(setups)}"
        given = [step for step in given if step not in setups]
        environment = self.environment | {"PATH": path}
        printed = play(given, self.podman.site.user, environment, self.place)
        for step, (output, status) in zip(given, printed, strict=True):
            assert status == "0", f"{step.command}: {status}: {output}"
            assert agrees(step.output, output), f"{step.command}: {output}"

    def set_up(self, given: list[Step]) -> str:
        """Prepare scrun; return the PATH of those who have done it."""
        script = "\n".join([*(step.command for step in given), "echo $PATH"])
        return run_program(
            ["bash", "-ec", script],
            env=os.environ | {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
            cwd=CHECKOUT,
            check=True,
            timeout=100,
        ).stdout.strip()


@pytest.fixture
def desk() -> Iterator[Desk]:
    with rootless_podman() as podman:
        place = podman.site.base / "b" / "home"
        (place / "bin").mkdir(parents=True)
        words = podman.command[: podman.command.index("--runtime")]
        wrapper = place / "bin" / "podman"
        wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/{" ".join(words)} "$@"\n')
        wrapper.chmod(0o755)
        podman.site.user.give(place)
        yield Desk(podman, place)
        shutil.rmtree(place)


@pytest.mark.parametrize("page", ["README.md", nightly("docs/tutorial.md")])
def test_the_commands_do_what_the_page_says(desk: Desk, page: str) -> None:
    desk.play(page)
