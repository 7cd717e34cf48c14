"""Rootless buildah, with scrun as its runtime, on Slurm: podman's storage and settings."""

import subprocess

from tests.harness.client import Client
from tests.harness.daemons import program
from tests.harness.podman import Podman

OCI = ("--isolation", "oci", "--network", "host")
"""`podman build` and `buildah run`: not in a chroot on this machine; and there is no slirp."""


class Buildah(Client):
    """buildah of the same user, with the same images."""

    def __init__(self, podman: Podman) -> None:
        self.podman = podman
        self.site = podman.site
        base = self.site.base
        self.prefix = podman.prefix
        self.command = [program("buildah"), "--root", f"{base}/s", "--runroot", f"{base}/x/s"]
        self.command += ["--storage-driver", podman.storage]
        self.environment = podman.environment

    def step(
        self, container: str, script: str, *options: str, data: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        """`buildah run` of a shell script, by scrun."""
        runtime = ("--runtime", self.site.command[0])
        return self.run("run", *OCI, *runtime, *options, container, "sh", "-c", script, data=data)
