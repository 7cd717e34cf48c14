"""A laptop, from which containers are made on the cluster: the engines' own ways over ssh."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.daemons import program
from tests.harness.engine_api import Api
from tests.harness.program import run_program
from tests.harness.sshd import Laptop, laptop_of

pytestmark = [pytest.mark.nightly, pytest.mark.covers("promise clients")]

OPTIONS = ("--name", "told", "--network", "host", "busybox")
JOB = ("sh", "-c", "echo job=$SLURM_JOB_ID; exit 7")


@pytest.fixture
def laptop(api: Api) -> Iterator[Laptop]:
    site = api.engine.site
    with laptop_of(site.user, site.base / "laptop", {"DOCKER_HOST": api.url}) as laptop:
        yield laptop


class Command:
    """A program on the laptop."""

    def __init__(self, api: Api, laptop: Laptop, *words: str) -> None:
        self._user, self._words = api.engine.site.user, words
        self._environment = laptop.environment

    def run(self, *words: str, data: str = "") -> tuple[int, str, str]:
        """Call it; return its status and what it has said."""
        done = run_program(
            [*self._user.prefix, *self._words, *words],
            env=self._environment, cwd=Path("/"), input=data,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def must(self, *words: str) -> str:
        status, said, error = self.run(*words)
        assert status == 0, f"{words}: {status}: {error}"
        return said


def is_a_job(api: Api, command: Command) -> None:
    """Hold that status, streams and the end of input come over the connection."""
    for words, data, status, expected in (
        (JOB, "", 7, r"job=\d+\n" if api.on_slurm else "job=\n"),
        (("sort",), "b\na\n", 0, "a\nb\n"),
    ):
        # not `--rm`: podman's API then tells docker another status, by crun too
        done = command.run("run", "-i", *OPTIONS, *words, data=data)
        command.must("rm", "told")
        assert done[0] == status, done
        assert re.fullmatch(expected, done[1]), done
    command.must("run", "--detach", *OPTIONS, "sleep", "1000")
    try:
        done = command.run("exec", "-i", "told", "sort", data="b\na\n")
        assert done[:2] == (0, "a\nb\n"), done
        assert "told" in command.must("ps")
    finally:
        command.must("rm", "--force", "told")


@pytest.mark.parametrize("_api", ["podman-slurm", "podman-crun"], indirect=True)
def test_a_connection_of_podman_s(api: Api, laptop: Laptop) -> None:
    link = Path(f"/run/user/{api.engine.site.user.uid}/podman.sock")  # podman 4.3 drops others
    link.symlink_to(api.socket)
    try:
        podman = Command(api, laptop, program("podman"))
        key = ("--identity", str(laptop.key))
        podman.must("system", "connection", "add", *key, "cluster", f"{laptop.url}{link}")
        words = (program("podman"), "--remote", "--connection", "cluster")
        is_a_job(api, Command(api, laptop, *words))
    finally:
        link.unlink()


def test_a_context_of_docker_s(api: Api, laptop: Laptop) -> None:
    """At the login node its command asks the engine that DOCKER_HOST says."""
    docker = Command(api, laptop, program("docker"))
    docker.must("context", "create", "cluster", "--docker", f"host={laptop.url}")
    is_a_job(api, Command(api, laptop, program("docker"), "--context", "cluster"))
