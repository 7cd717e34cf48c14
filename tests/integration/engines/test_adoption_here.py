"""Engines on this machine do not notice that supervisors die: others adopt their containers."""

import signal
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from tests.harness import users
from tests.harness.adoption import ECHO, echoes, ends
from tests.harness.containerd import IMAGE, Containerd
from tests.harness.docker import Docker
from tests.harness.podman import Podman, podman_of
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until

_COUNTS = "trap 'exit 7' TERM; n=0; while :; do echo $n; n=$((n+1)); sleep 0.02; done"
_ANY_PIDS = ("--pids-limit", "0")


def kill_all_supervisors(site: Site) -> None:
    """Two times: the successors are killed as well."""
    for _ in range(2):
        killed = wait_until("supervisors", site.supervisors, 20)
        for supervisor in killed:
            signal_quietly(supervisor, signal.SIGKILL)
        wait_until("successors", partial(_others, site, killed), 20)


def _others(site: Site, killed: list[int]) -> set[int]:
    return {*site.supervisors()} - {*killed}


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.fixture(scope="module", params=["root", "rootless"])
def _podman(request: pytest.FixtureRequest) -> Iterator[Podman]:
    user = users.root() if request.param == "root" else users.ordinary()
    with podman_of(user, "local") as podman:
        yield podman


@pytest.fixture
def here(_podman: Podman) -> Iterator[Podman]:
    yield _podman
    _podman.run("pod", "rm", "--all", "--force", "--time", "0")
    _podman.run("rm", "--all", "--force", "--time", "0")


def run_words(*words: str) -> tuple[str, ...]:
    return ("run", "--network", "none", *_ANY_PIDS, *words)


def test_podman(here: Podman) -> None:
    container = here.must(*run_words("--detach", "busybox", "sh", "-c", _COUNTS)).strip()
    wait_until("it is up", lambda: "\n9\n" in here.must("logs", container), 30)
    pipe = subprocess.PIPE
    words = ("logs", "--follow", container)
    follower = here.popen(*words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    plain = ("exec", "--interactive", container, *ECHO)
    with here.popen(*plain, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        echoes(program)
        kill_all_supervisors(here.site)
        assert here.must("exec", container, "echo", "in it") == "in it\n"
        echoes(program)
        ends(program)
    count = here.must("logs", container).count("\n")
    wait_until("more", lambda: here.must("logs", container).count("\n") > count + 10, 30)
    here.must("stop", "--time", "20", container)
    assert here.must("wait", container) == "7\n"
    followed, _ = follower.communicate(timeout=30)
    lines = here.must("logs", container).split()
    assert lines == numbers(len(lines))
    assert followed.decode().split() == lines
    here.must("start", container)  # it can be run again
    here.must("stop", "--time", "20", container)
    here.must("rm", container)


def test_podman_with_a_terminal(here: Podman) -> None:
    screen, slave = open_terminal()
    script = "echo it is up; read line; echo got $line; exit 7"
    words = run_words("--interactive", "--tty", "busybox", "sh", "-c", script)
    running = here.popen(*words, stdin=slave, stdout=slave, stderr=slave)
    screen.read_until("it is up")
    kill_all_supervisors(here.site)
    screen.says_got()
    assert running.wait(30) == 7
    here.must("rm", "--all")


def test_a_pod_of_podman(here: Podman) -> None:
    infra = ("--infra-image", "busybox", "--infra-command", "sleep 600", "--network", "none")
    here.must("pod", "create", "--name", "p", *infra)
    of_it = ("run", *_ANY_PIDS, "--pod", "p", "--detach", "busybox", "sh", "-c", _COUNTS)
    containers = [here.must(*of_it).strip() for _ in range(2)]
    kill_all_supervisors(here.site)
    for container in containers:
        assert here.must("exec", container, "echo", "in it") == "in it\n"
        here.must("stop", "--time", "20", container)
        assert here.must("wait", container) == "7\n"
    here.must("pod", "rm", "--force", "--time", "0", "p")


def test_docker() -> None:
    with Docker(engine="local") as docker:
        words = ("run", "--detach", "--network", "none", "busybox", "sh", "-c", _COUNTS)
        container = docker.must(*words).strip()
        wait_until("it is up", lambda: "\n9\n" in docker.must("logs", container), 30)
        plain, pipe = ("exec", "--interactive", container, *ECHO), subprocess.PIPE
        with docker.popen(*plain, stdin=pipe, stdout=pipe, stderr=pipe) as program:
            echoes(program)
            kill_all_supervisors(docker.site)
            assert docker.must("exec", container, "echo", "in it") == "in it\n"
            echoes(program)
            ends(program)
        count = docker.must("logs", container).count("\n")
        wait_until("more", lambda: docker.must("logs", container).count("\n") > count + 10, 30)
        docker.must("stop", "--time", "20", container)
        assert docker.must("wait", container) == "7\n"
        lines = docker.must("logs", container).split()
        assert lines == numbers(len(lines))
        docker.must("rm", container)


def test_containerd() -> None:
    with Containerd(engine="local") as containerd:
        log = containerd.base / "output"
        words = (*containerd.run_options, "--detach", "--log-uri", f"file://{log}")
        containerd.must(*words, IMAGE, "c1", "sh", "-c", _COUNTS)
        wait_until("it is up", lambda: log.exists() and "\n9\n" in log.read_text(), 30)
        kill_all_supervisors(containerd.site)
        executed = containerd.must("task", "exec", "--exec-id", "e", "c1", "echo", "in it")
        assert executed == "in it\n"
        count = log.read_text().count("\n")
        wait_until("more", lambda: log.read_text().count("\n") > count + 10, 30)
        containerd.must("task", "kill", "--signal", "TERM", "c1")
        wait_until("its end", lambda: "STOPPED" in containerd.must("task", "ls"), 30)
        assert "exit code 7" in containerd.run("task", "delete", "c1").stderr
        lines = log.read_text().split()
        assert lines == numbers(len(lines))
        containerd.must("container", "rm", "c1")
