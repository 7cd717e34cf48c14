"""The API of an engine whose runtime is scrun, for clients of Docker's and podman's.

Its storage is on overlay, as engines have it by default.
"""

import contextlib
import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.harness import cluster, users
from tests.harness.client import Client
from tests.harness.docker import Docker
from tests.harness.podman import Podman, podman_of
from tests.harness.squashfs import fuse_for_all
from tests.harness.wait import wait_until

PLACES = ("podman-slurm", "podman-local", "podman-crun", "docker-slurm")
"""Those of crun have no scrun, to see what a client can do there without it."""


class Api:
    """An engine, and the socket at which it serves its API.

    Attributes:
        engine: The engine, by its command.
        socket: The socket.
    """

    def __init__(self, place: str, engine: Client, socket_: Path) -> None:
        self.place, self.engine, self.socket = place, engine, socket_

    @property
    def url(self) -> str:
        """What DOCKER_HOST and CONTAINER_HOST say."""
        return f"unix://{self.socket}"

    @property
    def is_podman(self) -> bool:
        return self.place.startswith("podman")

    @property
    def on_slurm(self) -> bool:
        return self.place.endswith("slurm")

    def get(self, path: str) -> Any:
        """What the engine answers to a request, decoded."""
        return json.loads(_asked(self.socket, path))

    def jobs(self) -> list[str]:
        """The jobs of its user."""
        return cluster.jobs(self.engine.site.user)


def _asked(path: Path, what: str) -> bytes:
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(str(path))
        connection.request("GET", what)
        return connection.getresponse().read()
    finally:
        connection.close()


def answers(path: Path) -> bool:
    """Tell whether an engine answers at a socket."""
    try:
        return _asked(path, "/_ping") == b"OK"
    except OSError:
        return False


@contextlib.contextmanager
def served(podman: Podman) -> Iterator[Path]:
    """Have podman serve its API; yield the socket."""
    path = podman.site.base / "x" / "podman.sock"
    pipe = subprocess.DEVNULL
    arguments = ("system", "service", "--time=0", f"unix://{path}")
    with podman.popen(*arguments, stdin=pipe, stdout=pipe, stderr=pipe) as service:
        try:
            wait_until("its API", lambda: answers(path))
            yield path
        finally:
            service.terminate()


@contextlib.contextmanager
def api_at(place: str, settings: str = "") -> Iterator[Api]:
    """Have an engine in one of `PLACES`."""
    name, _, engine = place.partition("-")
    fuse_for_all()
    with contextlib.ExitStack() as stack:
        if engine == "slurm":
            stack.enter_context(cluster.without_oci_conf())
        if name == "docker":
            docker = stack.enter_context(Docker(engine=engine, storage="overlay2"))
            yield Api(place, docker, docker.base / "docker.sock")
            return
        site = "slurm" if engine == "slurm" else "local"
        pure = engine == "crun"  # which refuses cgroups of both versions at a time
        podman = stack.enter_context(
            podman_of(users.ordinary(), site, settings=settings, cgroup2=pure, storage="overlay")
        )
        if engine == "crun":
            podman.command[podman.command.index("--runtime") + 1] = engine
        yield Api(place, podman, stack.enter_context(served(podman)))
