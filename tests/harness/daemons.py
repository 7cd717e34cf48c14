"""Engines that are a daemon: started by a test at a place of its own, and ended by pid."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.harness import cluster, users
from tests.harness.client import Client
from tests.harness.site import Site
from tests.harness.users import PATH
from tests.harness.wait import wait_until, wait_while

_TIMEOUT = 30.0


def program(name: str) -> str:
    """Find a program of the engine's package, not another one that was put before it."""
    found = shutil.which(name, path=f"/usr/sbin:/usr/bin:{PATH}")
    assert found, f"{name} is missing: tools/setup --test"
    return found


_HIDDEN = 'mount --bind "$0" "$1" && shift && exec "$@"'


def only_here(directory: Path) -> list[str]:
    """Words before a daemon: a directory that the nodes do not see, as they see an empty one."""
    hidden = directory.with_name(f"{directory.name}-hidden")
    for path in (directory, hidden):
        path.mkdir(mode=0o711)
    return ["unshare", "--mount", "sh", "-c", _HIDDEN, str(hidden), str(directory)]


_OF_THIS_MACHINE = "WARNING: IPv4 forwarding is disabled. Networking will not work.\n"
"""What docker says where nobody has switched that on."""


class Daemon(Client):
    """An engine, on Slurm or on this machine; everything of it lies in the site's directory.

    Its runtime inherits the daemon's environment, so that is where scrun's settings are.

    Attributes:
        records: The root directory that it gives the runtime.
    """

    def __init__(
        self, create_timeout: float = 60, engine: str = "slurm", user: users.User | None = None
    ) -> None:
        self.site = Site(engine, user or users.root(), create_timeout=create_timeout)
        self.base = self.site.base
        self.records = self.base / "records"
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self, argv: list[str], answers: Callable[[], bool]) -> None:
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

    @property
    def pid(self) -> int:
        assert self._daemon is not None
        return self._daemon.pid

    # The client

    def run(
        self, *arguments: str, data: bytes = b"", timeout: float = _TIMEOUT
    ) -> subprocess.CompletedProcess[str]:
        """Call the client and wait for it."""
        done = super().run(*arguments, data=data, timeout=timeout)
        done.stderr = done.stderr.replace(_OF_THIS_MACHINE, "")
        return done

    def settle(self) -> None:
        """Hold that no job and no record is left."""
        # what is told to end while it is being launched is killed after KillWait + 5 s
        if self.site.engine == "slurm":
            wait_while("jobs", lambda: cluster.jobs(self.site.user, self.base.name), 15)
        wait_while("records", lambda: [p for p in self.records.glob("*") if p.name[0] != "@"], 5)

    def containers(self) -> list[str]:
        raise NotImplementedError

    def remove(self, *containers: str) -> None:
        """Remove containers, whatever their state is."""
        raise NotImplementedError

    def clear(self) -> None:
        """After a test: hold that no container, job and record is left, and remove what is."""
        try:
            assert self.containers() == []
            self.settle()
        except BaseException:
            self.remove(*self.containers())
            raise

    # The end

    def close(self) -> None:
        """End the daemon, and remove everything; nothing of scrun's may be left.

        The containers that a failed test has left go first: a daemon leaves some of their mounts.
        """
        if any(self.base.glob("*.sock")):
            with contextlib.suppress(AssertionError):  # it does not answer
                self.remove(*self.containers())
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

    def __exit__(self, *_: object) -> None:
        self.close()
