"""The runtimes that scrun stands in for, called as it is: what they do, ours is compared with."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.site import CGROUP2

RUNTIMES = ("crun", "runc")


class Beside:
    """crun or runc, as root."""

    def __init__(self, runtime: str, root: Path) -> None:
        """Choose one.

        Args:
            runtime: Its name.
            root: For its state.
        """
        self.runtime = runtime
        own = (
            [*CGROUP2, "crun", "--cgroup-manager", "disabled"] if runtime == "crun" else [runtime]
        )
        self.command = [*own, "--root", str(root)]

    def run(
        self, *arguments: str, timeout: float = 30, **how: int
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*self.command, *arguments],
            stdin=how.get("stdin", subprocess.DEVNULL),
            stdout=how.get("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout,
        )

    @contextmanager
    def running(self, bundle: Path, container: str = "beside") -> Iterator[str]:
        """Have a container run meanwhile; its bundle must not need cgroups."""
        command = [*self.command, "run", "--detach", "--bundle", str(bundle), container]
        null = subprocess.DEVNULL
        subprocess.run(command, stdin=null, stdout=null, stderr=null, check=True, timeout=30)
        try:
            yield container
        finally:
            subprocess.run([*self.command, "delete", "--force", container], timeout=30)
