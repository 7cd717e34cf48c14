"""@devcontainers/cli, which opens projects as VS Code does, in a container that is a job."""

import hashlib
import json
import re
import shutil
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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

FILES = {
    "Dockerfile": """\
FROM localhost/busybox
ARG WORD=none
RUN echo "$WORD" > /built
ENV OF=image
CMD ["sleep", "1000"]
""",
    "Stages": """\
FROM localhost/busybox AS first
RUN echo first > /stage
FROM first
RUN echo second > /stage
""",
    "User": """\
FROM localhost/busybox
RUN echo somebody:x:1234:1234::/of:/bin/sh >> /etc/passwd; echo somebody:x:1234: >> /etc/group
RUN mkdir /of && chown 1234:1234 /of
""",
    "Copies": "FROM localhost/busybox\nCOPY .devcontainer/Copies /\n",
    "Broken": "FROM localhost/busybox\nRUN exit 3\n",
    "compose.yaml": """\
services:
  one: {image: localhost/busybox, command: sleep 1000, environment: {WORD: composed}}
  two: {build: {context: ., args: {WORD: two}}, depends_on: [one]}
""",
    "feature/devcontainer-feature.json": '{"id": "feature", "version": "1.0.0", "name": "f"}',
    "feature/install.sh": "#!/bin/sh\necho installed > /feature\n",
}
"""What devcontainer.json may name."""
NOTED = "echo {} >> /noted"
COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand", "postStartCommand")


@dataclass
class Project:
    """A folder that the client opens."""

    api: Api
    place: Path
    port: int

    def call(
        self, command: str, *words: str, data: str = "", before: Sequence[str] = ()
    ) -> tuple[int, str, str]:
        """Call the client, below a program; return its status and what it has said."""
        engine = self.api.engine
        base, user = engine.site.base, engine.site.user
        where = () if "--container-id" in words else ("--workspace-folder", str(self.place))
        options = (*where, "--docker-path", f"{base}/podman")
        mine = {"PATH": path_of_clients(), "HOME": str(self.place.parent), "OF_CALLER": "caller"}
        done = run_program(
            [*user.prefix, "/usr/bin/env", *before, "devcontainer", command, *options, *words],
            env={**engine.environment, **mine, "DOCKER_HOST": self.api.url},
            cwd=base, timeout=300, input=data, errors="surrogateescape",
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def done(self, command: str, *words: str) -> dict[str, Any]:
        """Call it, successfully; return what it says at last."""
        status, said, error = self.call(command, *words)
        assert status == 0, said + error[-3000:]
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found

    def up(self, *words: str) -> dict[str, Any]:
        """Open it; return what the client says of its container."""
        found = self.done("up", *words)
        assert found["outcome"] == "success"
        return found

    def fails(self, command: str, *words: str) -> None:
        """Call it, in vain."""
        status, said, _ = self.call(command, *words)
        assert (status, json.loads(said.splitlines()[-1])["outcome"]) == (1, "error")

    def exec(self, script: str, *options: str, data: str = "") -> tuple[int, str]:
        """Run a script in it; return its status and output."""
        status, said, _ = self.call("exec", *options, "sh", "-c", script, data=data)
        return status, said

    def write(self, settings: dict[str, Any]) -> None:
        """Write devcontainer.json, and what it may name."""
        folder = self.place / ".devcontainer"
        (folder / "feature").mkdir(parents=True, exist_ok=True)
        for name, text in {**FILES, "devcontainer.json": json.dumps(settings)}.items():
            (folder / name).write_text(text)
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
        project = Project(api, engine.site.base / "home" / "project", free_port())
        project.write(settings_of(project.port))
        engine.site.user.give(project.place.parent)
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


EXECS: dict[str, tuple[int, str]] = {
    "exit 3": (3, ""),
    "exit 255": (255, ""),
    "true": (0, ""),
    "echo out; echo err >&2": (0, "out\n"),
    "kill -KILL $$": (137, ""),
    "kill -TERM $$": (143, ""),
    "test ! -t 0 && test ! -t 1": (0, ""),
    "cat": (0, ""),
    "cat /built": (0, "built\n"),
    "echo $OF": (0, "image\n"),
    "echo $OF_CONTAINER": (0, "of container\n"),
    "echo $OF_REMOTE": (0, "of container, remote\n"),
    "pwd": (0, "/workspaces/project\n"),
    "cd /kept && pwd": (0, "/kept\n"),
    "ls -A": (0, ".devcontainer\n"),
    "id -u": (0, "0\n"),
    "whoami": (0, "root\n"),
    "echo $HOME": (0, "/root\n"),
    "umask": (0, "0022\n"),
    "echo kept > /kept/file && cat /kept/file": (0, "kept\n"),
    "cat /noted": (0, "".join(f"{name}\n" for name in COMMANDS)),
    "echo \"$1\" 'a  b'": (0, " a  b\n"),
    "echo 'ä ☃'": (0, "ä ☃\n"),
    "printf 'a\nb'": (0, "a\nb"),
    "set -- $(seq 9000); echo $#": (0, "9000\n"),
    "seq 1 20000 | tail -n 1": (0, "20000\n"),
    "yes | head -c 3000000": (0, "y\n" * 1_500_000),
    "seq 3 | while read one; do echo $one; done": (0, "1\n2\n3\n"),
    "sleep 1000 >/dev/null 2>&1 & echo begun": (0, "begun\n"),
    "wget -q -O - http://127.0.0.1:8080/group": (0, "root:x:0:\n"),
}
"""What a script's status and output are."""


@pytest.mark.parametrize("script", EXECS)
def test_exec(script: str, project: Project) -> None:
    assert project.exec(script) == EXECS[script]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("echo", "a b", "$OF"), 0),
        (("nobody-s-program",), 127),
        (("/etc/group",), 126),
        (("/etc",), 126),
        (("test", "-t", "0"), 1),
    ],
)
def test_a_program(words: tuple[str, ...], status: int, project: Project) -> None:
    """Without a shell."""
    assert project.call("exec", *words)[:2] == (status, "" if status else "a b $OF\n")


@pytest.mark.parametrize(
    "data",
    ["a\n", bytes(range(256)).decode(errors="surrogateescape"), "line\n" * 200_000],
    ids=["a line", "all bytes", "a megabyte"],
)
def test_the_input_of_an_exec(data: str, project: Project) -> None:
    digest = hashlib.md5(data.encode(errors="surrogateescape")).hexdigest()
    assert project.exec("md5sum", data=data) == (0, f"{digest}  -\n")
    assert project.exec("cat", data=data) == (0, data.replace("\r", "\n"))


IN_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


@pytest.mark.parametrize(
    ("script", "data", "status", "said"),
    [
        ("test -t 0 -a -t 1 && tty", "", 0, "/dev/pts/0"),
        ("exit 123", "", 123, ""),
        ("read one; echo =$one$one=", "typed\n", 0, "=typedtyped="),
    ],
)
def test_a_terminal(script: str, data: str, status: int, said: str, project: Project) -> None:
    before = ("/usr/bin/python3", "-c", IN_TERMINAL)
    found = project.call("exec", "sh", "-c", script, data=data, before=before)
    assert found[0] == status
    assert said in found[1]


def test_a_variable_of_an_exec_s(project: Project) -> None:
    assert project.exec("echo $GIVEN", "--remote-env", "GIVEN=given") == (0, "given\n")


OF_IMAGE = {"image": "localhost/busybox"}
NOTES = {name: NOTED.format(name) for name in (*COMMANDS, "postAttachCommand")}
SO_FAR = "touch /noted; echo $(cat /noted)"
MOUNT = "source=${localWorkspaceFolder},target=/there,type=bind"
OF_USER = {"build": {"dockerfile": "User"}, "remoteUser": "somebody"}
FEATURE: dict[str, Any] = {"features": {"./feature": {}}}
COMPOSED = {"dockerComposeFile": "compose.yaml", "workspaceFolder": "/tmp"}
UPS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "an image": (OF_IMAGE, "", "pwd", "/workspaces/other"),
    "a stage": (
        {"build": {"dockerfile": "Stages", "target": "first"}}, "", "cat /stage", "first"),
    "files of its folder": (
        {"build": {"dockerfile": "Copies", "context": ".."}}, "", "head -n 1 /Copies",
        "FROM localhost/busybox"),
    "an image with a feature": ({**OF_IMAGE, **FEATURE}, "", "cat /feature", "installed"),
    "a Dockerfile with a feature": (
        {"build": {"dockerfile": "Dockerfile"}, **FEATURE},
        "", "cat /built /feature", "none\ninstalled"),
    "a service": ({**COMPOSED, "service": "one"}, "", "pwd; echo $WORD", "/tmp\ncomposed"),
    "a service that is built": ({**COMPOSED, "service": "two"}, "", "cat /built", "two"),
    "a service with a feature": (
        {**COMPOSED, "service": "two", **FEATURE}, "", "cat /built /feature", "two\ninstalled"),
    "another folder": (
        {**OF_IMAGE, "workspaceFolder": "/there", "workspaceMount": MOUNT},
        "", "pwd; ls -A", "/there\n.devcontainer"),
    "another user": (
        {**OF_USER, "containerUser": "somebody"},
        "", "id -un; cd && pwd && touch made && cd - && touch made && test -O made",
        "somebody\n/of\n/workspaces/other"),
    "its own program": (
        {"build": {"dockerfile": "Dockerfile"}, "overrideCommand": False},
        "", "tr '\\0' ' ' </proc/1/cmdline; echo", "sleep 1000 "),
    "options of podman's": (
        {**OF_IMAGE, "runArgs": ["--hostname", "named"]}, "", "hostname", "named"),
    "an init": ({**OF_IMAGE, "init": True}, "", "grep -c init /proc/1/cmdline", "1"),
    "a debugger's rights": (
        {**OF_IMAGE, "capAdd": ["SYS_PTRACE"], "securityOpt": ["seccomp=unconfined"]},
        "", "grep Seccomp: /proc/self/status", "Seccomp:\t0"),
    "all rights": (
        {**OF_IMAGE, "privileged": True},
        "", "mkdir /m && mount -t tmpfs none /m && echo mounted", "mounted"),
    "variables": (
        {**OF_IMAGE, "containerEnv": {"A": "${localWorkspaceFolderBasename}"},
         "remoteEnv": {"B": "${localEnv:OF_CALLER}"}}, "", "echo $A $B", "other caller"),
    "all commands": ({**OF_IMAGE, **NOTES}, "", SO_FAR, " ".join(NOTES)),
    "none of them": ({**OF_IMAGE, **NOTES}, "--skip-post-create", SO_FAR, ""),
    "all but the last": (
        {**OF_IMAGE, **NOTES}, "--skip-post-attach", SO_FAR, " ".join(COMMANDS)),
    "those of a build": ({**OF_IMAGE, **NOTES}, "--prebuild", SO_FAR, " ".join(COMMANDS[:2])),
    "a list of words": (
        {**OF_IMAGE, "postCreateCommand": ["touch", "/a b"]}, "", "ls -d /a*", "/a b"),
    "two at once": (
        {**OF_IMAGE, "postCreateCommand": {"one": "touch /a1", "two": "touch /a2"}},
        "", "echo /a?", "/a1 /a2"),
    "one that runs here": (
        {**OF_IMAGE, "initializeCommand": "echo here > made"}, "", "cat made", "here"),
    "a variable of theirs": (
        {**OF_IMAGE, "postCreateCommand": "echo $A > /a"}, "--remote-env=A=b", "cat /a", "b"),
    "a mount": (
        OF_IMAGE, "--mount=type=volume,source=kept,target=/more", "cd /more; touch x; ls x", "x"),
}  # fmt: skip
"""What settings of a project, and an option of `up`, make of it: what a script says then."""


@pytest.fixture
def other(project: Project) -> Iterator[Project]:
    """Another project of theirs."""
    engine = project.api.engine
    every = ("ps", "--all", "--quiet")
    before = {*engine.must(*every).split()}
    other = replace(project, place=project.place.parent / "other")
    yield other
    if new := {*engine.must(*every).split()} - before:
        engine.must("rm", "--force", "--time", "0", *new)
    engine.must("network", "prune", "--force")
    shutil.rmtree(other.place)


@pytest.mark.parametrize("what", UPS)
def test_what_is_opened(what: str, other: Project) -> None:
    settings, option, script, expected = UPS[what]
    other.write(settings)
    other.up(*option.split())
    assert other.exec(script) == (0, f"{expected}\n")


def test_a_user_for_its_commands_alone(other: Project) -> None:
    """The client asks podman for `keep-id`."""
    other.write(OF_USER)
    other.up()
    said = other.exec("whoami; stat -c %U . /etc; touch made && echo written")
    assert said == (0, "somebody\nsomebody\nroot\nwritten\n")


FAILS: dict[str, dict[str, Any]] = {
    "no image": {"image": "localhost/none:1"},
    "a RUN that fails": {"build": {"dockerfile": "Broken"}},
    "a command here that fails": {**OF_IMAGE, "initializeCommand": "exit 3"},
    "an unknown option": {**OF_IMAGE, "runArgs": ["--no-such-option"]},
    "no settings": {},
}


@pytest.mark.parametrize("what", FAILS)
def test_what_is_not_opened(what: str, other: Project) -> None:
    other.write(FAILS[what])
    other.fails("up")


def test_an_image_is_built(other: Project) -> None:
    other.write({"build": {"dockerfile": "Dockerfile"}, **FEATURE})
    found = other.done("build", "--image-name", "localhost/made")
    assert (found["outcome"], found["imageName"]) == ("success", ["localhost/made"])
    script = "cat /built /feature"
    said = other.api.engine.must("run", "--rm", "localhost/made", "sh", "-c", script)
    assert said == "none\ninstalled\n"
    other.write({"build": {"dockerfile": "Broken"}})
    other.fails("build")


def test_settings_are_read(project: Project) -> None:
    """Of a project, and of its container."""
    found = project.done("read-configuration", "--include-merged-configuration")
    assert found["workspace"]["workspaceFolder"] == "/workspaces/project"
    assert found["configuration"]["appPort"] == [f"{project.port}:8080"]
    command = settings_of(project.port)["postStartCommand"]
    assert found["mergedConfiguration"]["postStartCommands"] == [command]


def test_a_container_that_another_has_made(other: Project) -> None:
    """It becomes a dev container, by settings of a file and of its label."""
    other.write({**OF_IMAGE, **NOTES})
    label = json.dumps([{"remoteEnv": {"OF_LABEL": "label"}}])
    options = ("--detach", "--label", f"devcontainer.metadata={label}")
    container = other.api.engine.must("run", *options, "busybox", "sleep", "1000").strip()
    settings = other.place / ".devcontainer" / "devcontainer.json"
    where = ("--container-id", container, "--config", str(settings))
    for command in ("set-up", "run-user-commands"):
        assert other.done(command, *where)["outcome"] == "success", command
    found = other.done("read-configuration", *where, "--include-merged-configuration")
    assert found["mergedConfiguration"]["remoteEnv"] == {"OF_LABEL": "label"}
    said = other.call("exec", *where, "sh", "-c", f"echo $OF_LABEL; {SO_FAR}")[:2]
    ran = " ".join([*NOTES, [*NOTES][-1]])  # the last with each call
    assert said == (0, f"label\n{ran}\n")


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
        project.fails("up", "--remove-existing-container")
        assert project.exec("cat /built") == (0, "built\n")
    finally:
        project.write(settings_of(project.port))
        project.up("--remove-existing-container")
