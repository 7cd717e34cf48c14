"""Engines that are a daemon: started by a test at a place of its own, and ended by pid."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness import cluster, users
from tests.harness.site import Site
from tests.harness.users import PATH
from tests.harness.wait import wait_until, wait_while

_TIMEOUT = 30.0


def program(name: str) -> str:
    """Find a program of the engine's package, not another one that was put before it."""
    found = shutil.which(name, path=f"/usr/sbin:/usr/bin:{PATH}")
    assert found, f"{name} is missing: tools/setup --test"
    return found


_OF_THIS_MACHINE = "WARNING: IPv4 forwarding is disabled. Networking will not work.\n"
"""What docker says where nobody has switched that on."""


class Daemon:
    """A root's engine on Slurm; everything of it lies in the site's directory.

    Its runtime inherits the daemon's environment, so that is where scrun's settings are.

    Attributes:
        site: Where its containers' jobs and supervisors are found.
        records: The root directory that it gives the runtime.
    """

    command: list[str]
    environment: dict[str, str]

    def __init__(self, create_timeout: float = 60) -> None:
        self.site = Site("slurm", users.root(), create_timeout=create_timeout)
        self.base = self.site.base
        self.records = self.base / "records"
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self, argv: list[str], answers: Callable[[], bool]) -> None:
        """Start the daemon, and wait until it answers."""
        with open(self.base / "daemon.log", "wb") as log:
            self._daemon = subprocess.Popen(
                argv,
                env={**self.site.environment, "TMPDIR": str(self.base)},
                cwd=self.base,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        def ready() -> bool:
            assert self._daemon is not None
            said = (self.base / "daemon.log").read_text(errors="replace")
            assert self._daemon.poll() is None, said[-3000:]
            return answers()

        wait_until(f"{argv[0]} answers", ready, 20)

    # The client

    def popen(
        self, *arguments: str, stdin: int, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start the client."""
        return subprocess.Popen(
            [*self.command, *arguments],
            env=self.environment,
            cwd=self.base,
            start_new_session=True,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    def run(
        self, *arguments: str, data: bytes | None = None, timeout: float = _TIMEOUT
    ) -> subprocess.CompletedProcess[str]:
        """Call the client and wait for it."""
        pipe = subprocess.PIPE
        stdin = subprocess.DEVNULL if data is None else pipe
        with self.popen(*arguments, stdin=stdin, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(data, timeout)
            except BaseException:
                process.kill()  # TERM would only be passed on to the container
                raise
        said = err.decode().replace(_OF_THIS_MACHINE, "")
        return subprocess.CompletedProcess(
            arguments, process.returncode, out.decode(errors="replace"), said
        )

    def must(self, *arguments: str, data: bytes | None = None) -> str:
        """Call the client, successfully, and return what it printed."""
        done = self.run(*arguments, data=data)
        assert done.returncode == 0, f"{arguments}: {done.returncode}: {done.stderr}"
        return done.stdout

    def settle(self) -> None:
        """Hold that no job and no record is left."""
        # what is told to end while it is being launched is killed after KillWait + 5 s
        wait_while("jobs", lambda: cluster.jobs(self.site.user, self.base.name), 15)
        wait_while("records", lambda: [p for p in self.records.glob("*") if p.name[0] != "@"], 5)

    # The end

    def close(self) -> None:
        """End the daemon, and remove everything; nothing of scrun's may be left."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.site.close)
            stack.callback(self._unmount)
            stack.callback(self._stop)
            stack.callback(self.settle)

    def _stop(self) -> None:
        if self._daemon is None:
            return
        self._daemon.terminate()
        try:
            self._daemon.wait(20)
        finally:
            self._daemon.kill()
            self._daemon.wait(5)

    def _unmount(self) -> None:
        """Undo the mounts that the daemon leaves: of its own directory, of a namespace."""
        with open("/proc/self/mountinfo") as lines:
            points = [line.split(" ")[4] for line in lines]
        for point in reversed(points):
            if Path(point).is_relative_to(self.base):
                subprocess.run(["umount", point], check=True, timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
