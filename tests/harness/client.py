"""The command line client of an engine that has scrun as its runtime."""

import subprocess
from collections.abc import Sequence

from tests.harness.site import Site


class Client:
    """A client that works in the directory of a site.

    Attributes:
        site: Where the jobs and supervisors of its containers are found.
        prefix: What comes before its command, to be another user for example.
        command: How it is called.
        environment: Its environment.
    """

    site: Site
    prefix: Sequence[str] = ()
    command: list[str]
    environment: dict[str, str]

    def popen(
        self, *arguments: str, stdin: int, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.prefix, *self.command, *arguments],
            env=self.environment,
            cwd=self.site.base,
            start_new_session=True,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    def run(
        self, *arguments: str, data: bytes = b"", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Call it, with something to read, and wait for it."""
        pipe = subprocess.PIPE
        stdin = pipe if data else subprocess.DEVNULL
        with self.popen(*arguments, stdin=stdin, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(data or None, timeout)
            except BaseException:
                process.kill()  # TERM would only be passed on to the container
                raise
        return subprocess.CompletedProcess(
            arguments, process.returncode, out.decode(errors="replace"), err.decode()
        )

    def must(self, *arguments: str, data: bytes = b"", timeout: float = 60) -> str:
        """Call it, successfully, and return what it printed."""
        done = self.run(*arguments, data=data, timeout=timeout)
        assert done.returncode == 0, f"{arguments}: {done.returncode}: {done.stderr}"
        return done.stdout
