"""scrun install docker-api, with the real podman."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cluster
from tests.harness.engine_api import answers
from tests.harness.podman import Podman, rootless_podman
from tests.harness.processes import processes
from tests.harness.program import run_program
from tests.harness.users import User
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("scrun install", "promise clients")

_PODMAN_S = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Account:
    """A user who has podman, and nothing of scrun's."""

    def __init__(self, podman: Podman) -> None:
        self.site, self.user = podman.site, podman.site.user
        self.path = self.site.base / "b" / "home"
        self.config = self.path / ".config" / "containers"
        self.config.mkdir(parents=True)
        (self.config / "containers.conf").write_text(_PODMAN_S)
        (self.config / "storage.conf").write_text('[storage]\ndriver = "vfs"\n')
        self.socket = self.site.base / "x" / "podman" / "podman.sock"
        self.environment = {
            "HOME": str(self.path),
            "XDG_RUNTIME_DIR": f"{self.site.base}/x",
            "TMPDIR": str(self.site.base),
        }
        self.user.give(self.path)

    def scrun(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Call scrun; return its status and what it has said."""
        done = self.site.run(*arguments, environment={**self.environment, **environment})
        return done.returncode, done.stdout + done.stderr

    def services(self) -> list[int]:
        """The processes that serve podman's API for the user."""
        there = f"unix://{self.socket}"
        return [one.pid for one in processes() if there in one.argv]


@pytest.fixture
def account() -> Iterator[Account]:
    with cluster.without_oci_conf(), rootless_podman() as podman:
        settings = podman._settings
        written = settings.read_bytes()
        settings.unlink()
        account = Account(podman)
        try:
            yield account
        finally:
            account.scrun("install", "docker-api", "--undo")
            user = podman.site.user
            for words in ("system migrate", f"unshare rm -rf {account.path}/.local"):
                _as(user, "podman", *words.split(), env=account.environment)
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_bytes(written)
            user.give(settings.parents[1])
            shutil.rmtree(account.path)


def _as(user: User, *command: str, env: dict[str, str]) -> None:
    run_program([*user.prefix, *command], env={**user.environment, **env}, cwd=Path("/tmp"))


def test_there_and_back(account: Account) -> None:
    """The user has a DOCKER_HOST, and doctor runs a container by it, a job."""
    before = sorted(account.config.rglob("*"))
    assert account.scrun("install", "docker-api", "--dry-run")[0] == 0
    assert not account.services()
    status, said = account.scrun("install", "docker-api")
    assert (status, said.count("\n")) == (0, 1), said
    assert said.endswith(f"; next: export DOCKER_HOST=unix://{account.socket}\n")
    assert answers(account.socket)
    [service] = account.services()
    assert account.scrun("install", "docker-api")[0] == 0
    assert account.services() == [service]
    _, told = account.scrun("doctor")
    assert f"ok    docker-api: unix://{account.socket} answers, and a container ran to" in told
    status, said = account.scrun("install", "docker-api", "--undo")
    assert (status, said.count("\n")) == (0, 1), said
    assert not account.services()
    assert sorted(account.config.rglob("*")) == before


def test_a_service_of_the_users_own_is_left_alone(account: Account) -> None:
    """There is nothing to undo, and who serves does so for somebody else."""
    account.socket.parent.mkdir()
    account.user.give(account.socket.parent)
    command = ["podman", "system", "service", "--time=0", f"unix://{account.socket}"]
    environment = {**account.user.environment, **account.environment}
    with subprocess.Popen([*account.user.prefix, *command], env=environment, cwd="/") as service:
        try:
            wait_until("the service", lambda: answers(account.socket))
            status, said = account.scrun("install", "docker-api", "--undo")
            assert (status, said) == (0, "docker-api does not know scrun: nothing to undo\n")
            assert answers(account.socket)
        finally:
            for pid in account.services():
                os.kill(pid, signal.SIGTERM)
            service.wait(20)


def test_what_is_wrong(account: Account) -> None:
    """One line, and nothing is left."""
    before = sorted(account.config.rglob("*"))
    status, said = account.scrun("install", "docker-api", XDG_RUNTIME_DIR="")
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith("scrun: XDG_RUNTIME_DIR: not set")
    assert sorted(account.config.rglob("*")) == before
    status, said = account.scrun("install", "docker-api", XDG_RUNTIME_DIR="/proc")
    assert (status, said.count("\n")) == (1, 1), said  # no socket can be there
    assert sorted(account.config.rglob("*")) == before
    account.scrun("install", "docker-api")
    [service] = account.services()
    os.kill(service, signal.SIGTERM)
    wait_while("the service", account.services)
    _, told = account.scrun("doctor", "--no-job")
    [line] = [line for line in told.splitlines() if "docker-api" in line]
    assert line.startswith(f"warn  docker-api: unix://{account.socket}: ")
    assert line.endswith("; run `scrun install docker-api` again")
