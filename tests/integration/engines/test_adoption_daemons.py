"""docker and containerd do not notice that supervisors die: others adopt their containers."""

import os
from collections.abc import Iterator

import pytest

from tests.harness.adoption import COUNTS, counted, goes_on_with_all, kill_successors_too
from tests.harness.containerd import IMAGE, Containerd
from tests.harness.daemons import Daemon
from tests.harness.docker import Docker
from tests.harness.nightly import nightly
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until

_READS = ("sh", "-c", "echo it is up; read line; echo got $line; exit 7")
_EVERYWHERE = pytest.mark.parametrize("engine", [nightly("local"), "slurm"], indirect=True)
_ON_A_CLUSTER = pytest.mark.parametrize("engine", ["slurm"], indirect=True)


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def docker(engine: str) -> Iterator[Docker]:
    with Docker(engine=engine) as docker:
        yield docker


def goes_on_at_a_terminal(daemon: Daemon, *words: str) -> None:
    """Run a container that reads a line, which is typed after its supervisor has died."""
    screen, slave = open_terminal()
    with daemon.popen(*words, stdin=slave, stdout=slave, stderr=slave) as running:
        os.close(slave)
        screen.read_until("it is up", 30)
        kill_successors_too(daemon.site)
        screen.says_got()
        assert running.wait(30) == 7
    screen.close()


@_EVERYWHERE
def test_docker(docker: Docker) -> None:
    words = ("run", "--detach", "--network", "none", "busybox", "sh", "-c", COUNTS)
    container = docker.must(*words).strip()
    goes_on_with_all(docker, container)


@_ON_A_CLUSTER
def test_docker_with_a_terminal(docker: Docker) -> None:
    words = ("run", "--rm", "--network", "none", "--interactive", "--tty", "busybox", *_READS)
    goes_on_at_a_terminal(docker, *words)


@pytest.mark.nightly
@_ON_A_CLUSTER
def test_docker_shares_namespaces(docker: Docker) -> None:
    """As near to a pod as docker comes."""
    shared = ("--network", "none", "--ipc", "shareable")
    first = docker.must("run", "--detach", *shared, "busybox", "sh", "-c", COUNTS).strip()
    of_it = ("--network", f"container:{first}", "--ipc", f"container:{first}")
    second = docker.must("run", "--detach", *of_it, "busybox", "sh", "-c", COUNTS).strip()
    kill_successors_too(docker.site)
    for container in (second, first):
        assert docker.must("exec", container, "echo", "in it") == "in it\n"
        docker.must("stop", "--time", "20", container)
        assert docker.must("wait", container) == "7\n"
    docker.must("rm", second, first)


@_EVERYWHERE
def test_containerd(engine: str) -> None:
    with Containerd(engine=engine) as containerd:
        log = containerd.base / "output"
        words = (*containerd.run_options, "--detach", "--log-uri", f"file://{log}")
        containerd.must(*words, IMAGE, "c1", "sh", "-c", COUNTS)
        wait_until("it is up", lambda: log.exists() and "\n9\n" in log.read_text(), 30)
        kill_successors_too(containerd.site)
        executed = containerd.must("task", "exec", "--exec-id", "e", "c1", "echo", "in it")
        assert executed == "in it\n"
        count = log.read_text().count("\n")
        wait_until("more", lambda: log.read_text().count("\n") > count + 10, 30)
        containerd.must("task", "kill", "--signal", "TERM", "c1")
        wait_until("its end", lambda: "STOPPED" in containerd.must("task", "ls"), 30)
        assert "exit code 7" in containerd.run("task", "delete", "c1").stderr
        lines = log.read_text().split()
        assert lines == counted(len(lines))
        containerd.must("container", "rm", "c1")


@pytest.mark.nightly
@_ON_A_CLUSTER
def test_containerd_with_a_terminal(engine: str) -> None:
    with Containerd(engine=engine) as containerd:
        words = (*containerd.run_options, "--rm", "--tty", IMAGE, "c1", *_READS)
        goes_on_at_a_terminal(containerd, *words)
