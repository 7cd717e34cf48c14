"""@devcontainers/cli, which opens projects as VS Code does, in a container that is a job."""

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import Client
from tests.harness.engine_api import PLACES, Api, api_at
from tests.harness.networks import free_port
from tests.harness.packages import path_of_clients
from tests.harness.podman import given
from tests.harness.program import run_program
from tests.harness.wait import wait_while

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.covers("promise clients")]

DOCKERFILE = """\
FROM localhost/busybox
ARG WORD
RUN echo "$WORD" > /built
ENV OF=image
"""
NOTED = "echo {} >> /noted"
COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand", "postStartCommand")


@dataclass
class Project:
    """A folder that the client opens."""

    api: Api
    place: Path
    port: int

    def call(self, command: str, *words: str, data: str = "") -> tuple[int, str, str]:
        """Call the client; return its status and what it has said."""
        engine = self.api.engine
        base, user = engine.site.base, engine.site.user
        options = ("--workspace-folder", str(self.place), "--docker-path", f"{base}/podman")
        done = run_program(
            [*user.prefix, "/usr/bin/env", "devcontainer", command, *options, *words],
            env={**engine.environment, "PATH": path_of_clients(), "HOME": str(self.place.parent)},
            cwd=base, timeout=110, input=data,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def up(self, *words: str) -> dict[str, Any]:
        """Open it; return what the client says of its container."""
        status, said, error = self.call("up", *words)
        assert status == 0, said + error[-3000:]
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        assert found["outcome"] == "success"
        return found

    def exec(self, script: str, *options: str, data: str = "") -> tuple[int, str]:
        """Run a script in it; return its status and output."""
        status, said, _ = self.call("exec", *options, "sh", "-c", script, data=data)
        return status, said

    def write(self, settings: dict[str, Any]) -> None:
        """Write devcontainer.json."""
        path = self.place / ".devcontainer" / "devcontainer.json"
        path.write_text(json.dumps(settings))
        self.api.engine.site.user.give(self.place)


def settings_of(port: int) -> dict[str, Any]:
    return {
        "build": {"dockerfile": "Dockerfile", "args": {"WORD": "built"}},
        "appPort": [f"{port}:8080"],
        "containerEnv": {"OF_CONTAINER": "of container"},
        "remoteEnv": {"OF_REMOTE": "${containerEnv:OF_CONTAINER}, remote"},
        "mounts": [{"type": "volume", "source": "kept", "target": "/kept"}],
        "updateRemoteUserUID": False,
        **{name: NOTED.format(name) for name in COMMANDS},
        "postStartCommand": f"{NOTED.format(COMMANDS[-1])}; busybox httpd -p 8080 -h /etc",
    }


@pytest.fixture(scope="module", params=[place for place in PLACES if place.startswith("podman")])
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    """One that is open."""
    with api_at(request.param) as api:
        engine = api.engine
        words = " ".join(engine.command)
        given(engine, "podman", f'#!/bin/sh\nexec {words} "$@"\n').chmod(0o755)
        place = engine.site.base / "home" / "project"
        (place / ".devcontainer").mkdir(parents=True)
        engine.site.user.give(place.parent)
        project = Project(api, place, free_port())
        (place / ".devcontainer" / "Dockerfile").write_text(DOCKERFILE)
        project.write(settings_of(project.port))
        project.up()
        yield project
        remove(engine)
        engine.must("volume", "rm", "kept")
        if api.on_slurm:
            wait_while("jobs", api.jobs, 15)


def remove(engine: Client) -> None:
    engine.must("rm", "--all", "--force", "--time", "0")


def test_it_is_a_job(project: Project) -> None:
    status, said = project.exec("echo job=$SLURM_JOB_ID")
    assert status == 0
    assert bool(re.search(r"job=\d+", said)) is project.api.on_slurm


def test_its_forwarded_port(project: Project) -> None:
    """A server that the last command of the project has started."""
    with urllib.request.urlopen(f"http://127.0.0.1:{project.port}/group", timeout=30) as answer:
        assert answer.read() == b"root:x:0:\n"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 3", (3, "")),
        ("true", (0, "")),
        ("echo out; echo err >&2", (0, "out\n")),
        ("kill -KILL $$", (137, "")),
        ("cat /built", (0, "built\n")),
        ("echo $OF", (0, "image\n")),
        ("echo $OF_CONTAINER", (0, "of container\n")),
        ("echo $OF_REMOTE", (0, "of container, remote\n")),
        ("pwd", (0, "/workspaces/project\n")),
        ("ls -A", (0, ".devcontainer\n")),
        ("id -u", (0, "0\n")),
        ("echo kept > /kept/file && cat /kept/file", (0, "kept\n")),
        ("cat /noted", (0, "".join(f"{name}\n" for name in COMMANDS))),
        ("echo \"$1\" 'a  b'", (0, " a  b\n")),
        ("seq 1 20000 | tail -n 1", (0, "20000\n")),
    ],
)
def test_exec(script: str, expected: tuple[int, str], project: Project) -> None:
    status, said = project.exec(script)
    assert (status, said.replace("\r\n", "\n")) == expected


def test_a_variable_of_an_exec_s(project: Project) -> None:
    assert project.exec("echo $GIVEN", "--remote-env", "GIVEN=given") == (0, "given\n")


def test_files_are_shared(project: Project) -> None:
    """Both sides see what the other has written."""
    (project.place / "there").write_text("there\n")
    assert project.exec("cat there; echo here > here") == (0, "there\n")
    assert (project.place / "here").read_text() == "here\n"
    for name in ("here", "there"):
        (project.place / name).unlink()


def test_it_is_opened_again(project: Project) -> None:
    """The same container, and its commands run no more; unless another one is asked for."""
    before = project.up()["containerId"]
    assert project.up()["containerId"] == before
    assert project.exec("grep -c onCreate /noted") == (0, "1\n")
    assert project.up("--remove-existing-container")["containerId"] != before


def test_a_stopped_one_is_opened(project: Project) -> None:
    """It is started, as another job."""
    container = project.up()["containerId"]
    project.api.engine.must("stop", "--time", "1", container)
    assert project.up()["containerId"] == container
    assert project.exec("grep -c postStart /noted") == (0, "2\n")
    test_its_forwarded_port(project)


def test_what_fails(project: Project) -> None:
    """A command of the project's that fails is its failure, and the container is there."""
    project.write({**settings_of(project.port), "postCreateCommand": "exit 5"})
    try:
        status, said, _ = project.call("up", "--remove-existing-container")
        assert (status, json.loads(said.splitlines()[-1])["outcome"]) == (1, "error")
        assert project.exec("cat /built") == (0, "built\n")
    finally:
        project.write(settings_of(project.port))
        project.up("--remove-existing-container")
