"""Somebody who reads a page of the documentation, and types what it says.

What a page shows has to be printed, except that numbers may be others, and `…` stands for any
text, alone on a line for any lines.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness import cluster, users
from tests.harness.bundle import write_bundle
from tests.harness.podman import Podman
from tests.harness.program import output_of
from tests.harness.registry import ANY, Registry
from tests.harness.session import Step, play
from tests.harness.site import Site, scrun_binary
from tests.harness.users import PATH
from tests.harness.wait import wait_until

IMAGES = ("library/alpine:latest", "library/debian:latest", "train:3", "mpi:1")
PROGRAMS = {
    "bash": 'exec sh "$@"',
    "apt-get": 'echo "$@"',
    "python": "echo trained",
    "mpirun": 'echo "$@"',
    "torchrun": 'echo "node $SLURM_NODEID: $*"',
}
"""What the pages run in images that nobody gets from the internet in a test."""

FAILS = {"scrun doctor"}
"""Commands whose status says something about the machine of the test."""


@dataclass
class Reader:
    """A user who has scrun, podman and a cluster, and reads a page."""

    podman: Podman
    registry: Registry
    stack: contextlib.ExitStack
    paths: dict[str, str] = field(default_factory=dict)

    @property
    def site(self) -> Site:
        return self.podman.site

    @property
    def home(self) -> Path:
        return self.site.base / "h"

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """Write a file in the home directory."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        self.site.user.give(self.home)
        return path

    def wrap(self, name: str, *words: str, **environment: str) -> None:
        """Have a command be another one."""
        variables = " ".join(f"{key}={value}" for key, value in environment.items())
        self.write(f"bin/{name}", f'#!/bin/sh\n{variables} exec {" ".join(words)} "$@"\n', 0o755)

    def bundle(self, name: str, *command: str) -> None:
        """Make a bundle in ~/bundles."""
        write_bundle(self.home / "bundles" / name, self.site.config(*command))
        self.site.user.give(self.home)

    def here(self, text: str) -> str:
        """Return a text of the page with the paths of the test."""
        for theirs, ours in self.paths.items():
            text = text.replace(theirs, ours)
        return text

    def environment(self, user: users.User) -> dict[str, str]:
        """Return what a user has who reads the page."""
        return {
            **user.environment,
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": f"{self.site.base}/x",
            "TMPDIR": str(self.site.base),
            "SLURM_CONF": cluster.slurm_conf(),
            "PATH": f"{self.home}/bin:{os.path.dirname(scrun_binary())}:{PATH}",
        }

    def must(self, *words: str) -> str:
        """Call a program as the user."""
        user = self.site.user
        environment = self.environment(user)
        return output_of([*user.prefix, "env", *words], env=environment, cwd=self.home)

    def session(self, given: list[Step], user: users.User) -> list[str]:
        """Type a session; return what each command printed."""
        given = [Step(self.here(step.command), step.output) for step in given]
        printed = play(given, user, self.environment(user), self.home)
        for step, (output, status) in zip(given, printed, strict=True):
            assert status == "0" or step.command in FAILS, f"{step.command}: {status}: {output}"
            assert shows(step.output, output), f"{step.command}: {output}"
        return [output for output, _ in printed]


def shows(shown: list[str], printed: str) -> bool:
    """Whether a page shows what a command printed, or leaves all of it out."""
    pattern = "".join(
        "(?:.*\n)*" if line == "…" else f"{re.escape(plain(line)).replace('…', '.*')}\n"
        for line in shown
    )
    text = "".join(f"{plain(line)}\n" for line in printed.splitlines())
    return not shown or re.fullmatch(pattern, text) is not None


def plain(line: str) -> str:
    """Return a line without what may be another number, unless it is all that the line has."""
    return line if line.isdigit() else re.sub(r"\d+", "0", " ".join(line.split()))


@contextlib.contextmanager
def reading(settings: str = "") -> Iterator[Reader]:
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(contextlib.closing(Site("slurm", users.ordinary())))
        for name, script in PROGRAMS.items():
            path = site.rootfs / "bin" / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        (site.rootfs / "etc" / "os-release").write_text("ID=test\n")
        registry = Registry(site)
        stack.callback(registry.close)
        registry.start()
        for image in IMAGES:
            registry.push(image)
        theirs = "".join(
            f'[[registry]]\nprefix = "{name}"\nlocation = "{registry.name}"\ninsecure = true\n'
            for name in ("docker.io", "registry.site", registry.name)
        )
        settings = settings.replace("@BASE@", str(site.base))
        settings += f'[images]\nstore = "{registry.store}"\n'
        podman = stack.enter_context(Podman(site, settings))
        stack.callback(podman.run, "pod", "rm", "--all", "--force", "--time", "1")
        reader = Reader(podman, registry, stack)
        short = 'unqualified-search-registries = ["docker.io"]\n'
        reader.write(".config/containers/registries.conf", short + theirs)
        reader.write(".config/containers/policy.json", json.dumps(ANY))
        words = podman.command[1 : podman.command.index("--runtime")]
        reader.wrap("podman", "/usr/bin/podman", *words)
        reader.wrap("buildah", "/usr/bin/buildah", *words[:6])
        reader.session([Step("scrun install podman")], site.user)
        yield reader
        assert podman.must("ps", "--all", "--quiet") == ""
        wait_until("no job", lambda: not cluster.jobs(site.user), 20)
