"""Rootless buildah, with scrun as its runtime, on Slurm: podman's storage and settings."""

import subprocess

from tests.harness.daemons import program
from tests.harness.podman import Podman

OCI = ("--isolation", "oci", "--network", "host")
"""`podman build` and `buildah run`: not in a chroot on this machine; and there is no slirp."""


class Buildah:
    """buildah of the same user, with the same images."""

    def __init__(self, podman: Podman) -> None:
        self.podman = podman
        self.site = podman.site
        base = self.site.base
        self._command = [program("buildah"), "--root", f"{base}/s", "--runroot", f"{base}/x/s"]
        self._command += ["--storage-driver", "vfs"]
        self._environment = {
            **self.site.user.environment,
            "XDG_RUNTIME_DIR": f"{base}/x",
            "TMPDIR": str(base),
        }

    def run(
        self, *arguments: str, data: bytes = b"", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Call buildah and wait for it."""
        done = subprocess.run(
            [*self.site.user.prefix, *self._command, *arguments],
            env=self._environment,
            cwd=self.site.base,
            start_new_session=True,
            input=data,
            capture_output=True,
            timeout=timeout,
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(arguments, done.returncode, out, err)

    def must(self, *arguments: str, data: bytes = b"") -> str:
        """Call buildah, successfully, and return what it printed."""
        done = self.run(*arguments, data=data)
        assert done.returncode == 0, f"buildah {arguments}: {done.returncode}: {done.stderr}"
        return done.stdout

    def step(
        self, container: str, script: str, *options: str, data: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        """`buildah run` of a shell script, by scrun."""
        runtime = ("--runtime", self.site.command[0])
        return self.run("run", *OCI, *runtime, *options, container, "sh", "-c", script, data=data)
