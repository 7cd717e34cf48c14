"""Engines on a cluster that is full, or whose partition is down: the queue is longer than their
patience.
"""

import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.harness import cluster
from tests.harness.adoption import kill_all_supervisors
from tests.harness.containerd import IMAGE, Containerd
from tests.harness.docker import Docker
from tests.harness.nightly import nightly
from tests.harness.podman import RUN, Podman, compose, rootless_podman, write_compose, write_kube
from tests.harness.terminal import Terminal
from tests.harness.wait import wait_until, wait_while

PATIENCE = 1
CREATE = ("create", *RUN[1:])
BUSY = re.compile(
    r"scrun: job \d+ pending: Resources(, starts about [0-9:]+)? \(the nodes are busy\)"
)
ALLOCATED = re.compile(r"scrun: job \d+ has been allocated node")
QUICK = 15.0
"""Seconds for what has to come at once, on a machine with other load."""


@pytest.fixture(scope="module")
def _podman() -> Iterator[Podman]:
    with rootless_podman(create_timeout=PATIENCE) as podman:
        yield podman


@pytest.fixture(scope="module")
def _docker() -> Iterator[Docker]:
    with Docker(create_timeout=PATIENCE) as docker:
        yield docker


@pytest.fixture(scope="module")
def _containerd() -> Iterator[Containerd]:
    with Containerd(create_timeout=PATIENCE) as containerd:
        yield containerd


@pytest.fixture
def docker(_docker: Docker) -> Iterator[Docker]:
    """A docker whose `create` waits for a second; no container and no job is left."""
    yield _docker
    _docker.clear()


@pytest.fixture
def containerd(_containerd: Containerd) -> Iterator[Containerd]:
    """A containerd whose `create` waits for a second; no container and no job is left."""
    yield _containerd
    _containerd.clear()


def jobs_of(engine: Podman | Docker | Containerd) -> list[str]:
    """The jobs of an engine's user, but for the one that fills the cluster."""
    return [job for job in cluster.jobs(engine.site.user) if not job.endswith(" full")]


def begin(
    engine: Podman | Docker | Containerd, *words: str, stdio: int = subprocess.PIPE
) -> "subprocess.Popen[bytes]":
    stdin = subprocess.DEVNULL if stdio == subprocess.PIPE else stdio
    return engine.popen(*words, stdin=stdin, stdout=stdio, stderr=stdio)


class Screen(Terminal):
    """A terminal at which an engine's client is called."""

    def __init__(self, engine: Podman | Docker | Containerd, *words: str) -> None:
        master, slave = pty.openpty()
        super().__init__(master)
        self.resize(43, 143)
        self.process = begin(engine, *words, stdio=slave)
        os.close(slave)

    def ended(self) -> int:
        """Wait for the client's end, and hang up."""
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.close()


# podman


def is_up(podman: Podman, name: str) -> None:
    """Wait until podman takes a container for running."""

    def status() -> str:
        return podman.run("inspect", "--format", "{{.State.Status}}", name).stdout

    wait_until(f"{name} is up", lambda: status() == "running\n", QUICK)


def said(podman: Podman, name: str) -> str:
    """All that a container has written."""
    done = podman.run("logs", name)
    return done.stdout + done.stderr


def waits(podman: Podman, name: str) -> None:
    """Wait until a container says what it waits for."""
    is_up(podman, name)
    wait_until("why it waits", lambda: BUSY.search(said(podman, name)), QUICK)


def test_podman_run(podman: Podman) -> None:
    with cluster.full(podman.site.user):
        process = begin(podman, *RUN, "--name", "one", "busybox", "sh", "-c", "echo ran; exit 7")
        waits(podman, "one")
        began = time.monotonic()
        assert "Up " in podman.must("ps", "--all")
        assert time.monotonic() - began < QUICK
        done = podman.run("exec", "one", "true")
        assert " exec is not possible yet: job " in done.stderr
        assert BUSY.search(done.stderr.replace("yet: job", "yet: scrun: job"))
        assert done.returncode != 0
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, b"ran\n")
    assert BUSY.search(err.decode())
    assert ALLOCATED.search(err.decode().splitlines()[-1])
    podman.must("rm", "one")


def test_podman_goes_on_when_the_supervisor_is_killed(podman: Podman) -> None:
    with cluster.full(podman.site.user):
        process = begin(podman, *RUN, "--name", "one", "busybox", "sh", "-c", "echo ran; exit 7")
        waits(podman, "one")
        jobs = jobs_of(podman)
        for _ in range(2):
            kill_all_supervisors(podman.site)
            time.sleep(1)
        assert "Up " in podman.must("ps", "--all")
        assert jobs_of(podman) == jobs
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, b"ran\n")
    podman.must("rm", "one")


def test_podman_run_detached_stop_and_rm(podman: Podman) -> None:
    with cluster.full(podman.site.user):
        podman.must(*RUN, "--detach", "--name", "one", "busybox", "true")
        waits(podman, "one")
        began = time.monotonic()
        podman.must("stop", "--time", "60", "one")
        assert time.monotonic() - began < QUICK
        [state] = json.loads(podman.must("inspect", "one"))
        assert (state["State"]["Status"], state["State"]["ExitCode"]) == ("exited", 143)
        wait_while("the job", lambda: jobs_of(podman), 5)
        podman.must("rm", "one")
        options = ("--detach", "--name", "two", "--stop-signal", "WINCH")
        podman.must(*RUN, *options, "busybox", "true")
        began = time.monotonic()
        podman.must("rm", "--force", "--time", "60", "two")
        assert time.monotonic() - began < QUICK
        wait_while("the job", lambda: jobs_of(podman), 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, nightly(signal.SIGINT)])
def test_podman_run_gets_a_signal(podman: Podman, number: signal.Signals) -> None:
    with cluster.full(podman.site.user):
        process = begin(podman, *RUN, "--rm", "--name", "one", "busybox", "true")
        waits(podman, "one")
        process.send_signal(number)
        process.communicate(timeout=QUICK)
        assert process.returncode == 128 + number
        wait_while("the job", lambda: jobs_of(podman), 5)


def test_podman_run_gets_a_signal_while_create_waits(podman: Podman) -> None:
    """podman obeys as soon as that is answered; what it leaves behind can be removed."""
    with cluster.full(podman.site.user):
        process = begin(podman, *RUN, "--name", "one", "busybox", "true")
        wait_until("the job", lambda: jobs_of(podman), QUICK)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=QUICK)
        podman.must("rm", "--force", "one")
        wait_while("the job", lambda: jobs_of(podman), 5)


def test_one_that_podman_never_starts_ends(podman: Podman) -> None:
    """So a podman that was interrupted before the start leaves no job that comes one day."""
    with cluster.full(podman.site.user):
        podman.must(*CREATE, "--name", "one", "busybox", "sh", "-c", "echo ran; exit 7")
        podman.must("init", "one")
        assert len(jobs_of(podman)) == 1
        assert "Initialized" in podman.must("ps", "--all")
        wait_while("the job", lambda: jobs_of(podman), 40)
        if podman.release >= (5, 0):  # it cleans up by itself only after what had begun
            podman.must("container", "cleanup", "one")
        wait_until("its end", lambda: "Created" in podman.must("ps", "--all"), QUICK)
        podman.must("start", "one")
        waits(podman, "one")
    assert podman.must("wait", "one") == "7\n"
    podman.must("rm", "one")


def test_podman_at_a_terminal(podman: Podman) -> None:
    script = 'stty size; read line; echo "got $line"; exit 5'
    with cluster.full(podman.site.user):
        screen = Screen(podman, *RUN, "--rm", "-it", "busybox", "sh", "-c", script)
        screen.read_until("pending: Resources", 60)
    screen.read_until("43 143", 60)
    screen.says_got(60)
    assert screen.ended() == 5


@pytest.mark.nightly
def test_podman_interrupted_at_a_terminal(podman: Podman) -> None:
    with cluster.full(podman.site.user):
        screen = Screen(podman, *RUN, "--rm", "-it", "busybox", "true")
        screen.read_until("pending: Resources", 60)
        screen.write("\x03")
        assert screen.ended() == 130
        wait_while("the job", lambda: jobs_of(podman), 5)


def test_podman_with_a_partition_that_is_down(podman: Podman) -> None:
    with cluster.partition_down():
        process = begin(podman, *RUN, "--name", "one", "busybox", "sh", "-c", "echo ran; exit 7")
        is_up(podman, "one")
        wait_until("why", lambda: "pending: PartitionDown (" in said(podman, "one"), QUICK)
        podman.must(*RUN, "--detach", "--name", "two", "busybox", "true")
        podman.must("rm", "--force", "two")
    out, _ = process.communicate(timeout=90)
    assert (process.returncode, out) == (7, b"ran\n")
    podman.must("rm", "one")


def test_podman_when_the_job_is_cancelled(podman: Podman) -> None:
    with cluster.full(podman.site.user):
        podman.must(*RUN, "--detach", "--name", "one", "busybox", "true")
        waits(podman, "one")
        [job] = jobs_of(podman)
        cluster.slurm("scancel", job.split()[0])
        assert podman.must("wait", "one") == "122\n"
        assert "was cancelled" in said(podman, "one").splitlines()[-1]
        podman.must("rm", "one")


LONG = "echo up; exec sleep 600"


@pytest.mark.nightly
def test_kube_play_and_down(podman: Podman) -> None:
    path = write_kube(podman, LONG)
    with cluster.full(podman.site.user):
        podman.must("kube", "play", path)
        assert len(jobs_of(podman)) == 1
        assert podman.must("ps", "--format", "{{.Status}}").count("Up") == 3
        wait_until("why", lambda: BUSY.search(said(podman, "web-one")), QUICK)
    for name in ("web-one", "web-two"):
        wait_until("it runs", lambda: "up" in said(podman, name).splitlines(), 30)  # noqa: B023
    podman.must("kube", "down", path)
    with cluster.full(podman.site.user):
        podman.must("kube", "play", path)
        podman.must("kube", "down", path)
        wait_while("the job", lambda: jobs_of(podman), 5)
    assert podman.must("pod", "ps", "--quiet") == ""


def test_compose_up_and_down(podman: Podman) -> None:
    pytest.importorskip("podman_compose")
    write_compose(podman, LONG)
    with cluster.full(podman.site.user):
        compose(podman, "up", "--detach")
        assert len(jobs_of(podman)) == 1
        compose(podman, "down", "--timeout", "60")
        wait_while("the job", lambda: jobs_of(podman), 5)
    assert podman.must("pod", "ps", "--quiet") == ""


# docker


def docker_waits(docker: Docker, name: str) -> None:
    def why() -> bool:
        done = docker.run("logs", name)
        return bool(BUSY.search(done.stderr + done.stdout))

    wait_until("why it waits", why, QUICK)


def test_docker_run(docker: Docker) -> None:
    with cluster.full(docker.site.user):
        process = begin(docker, "run", "--name", "one", "busybox", "sh", "-c", "echo ran; exit 7")
        docker_waits(docker, "one")
        assert "Up " in docker.must("ps")
        done = docker.run("exec", "one", "true")
        assert " exec is not possible yet: job " in done.stdout + done.stderr
        assert done.returncode != 0
        assert docker.run("pause", "one").returncode == 1
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, b"ran\n")
    assert ALLOCATED.search(err.decode().splitlines()[-1])
    docker.must("rm", "one")


def test_docker_run_detached_stop_and_rm(docker: Docker) -> None:
    with cluster.full(docker.site.user):
        docker.must("run", "--detach", "--name", "one", "busybox", "true")
        docker_waits(docker, "one")
        began = time.monotonic()
        docker.must("stop", "--time", "60", "one")
        assert time.monotonic() - began < QUICK
        assert docker.must("inspect", "--format", "{{.State.ExitCode}}", "one") == "143\n"
        docker.must("rm", "one")
        docker.must("run", "--detach", "--name", "two", "busybox", "true")
        docker.must("rm", "--force", "two")
        wait_while("the job", lambda: jobs_of(docker), 5)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [nightly(signal.SIGTERM), signal.SIGINT])
def test_docker_run_gets_a_signal(docker: Docker, number: signal.Signals) -> None:
    with cluster.full(docker.site.user):
        process = begin(docker, "run", "--rm", "--name", "one", "busybox", "true")
        docker_waits(docker, "one")
        process.send_signal(number)
        process.communicate(timeout=QUICK)
        assert process.returncode == 128 + number
        wait_while("the job", lambda: jobs_of(docker), 5)


@pytest.mark.nightly
def test_docker_at_a_terminal(docker: Docker) -> None:
    with cluster.full(docker.site.user):
        screen = Screen(docker, "run", "--rm", "-it", "busybox", "sh", "-c", "read line; exit 5")
        screen.read_until("pending: Resources", 60)
    screen.read_until("has been allocated", 60)
    screen.write("something\n")
    assert screen.ended() == 5
    with cluster.full(docker.site.user):
        screen = Screen(docker, "run", "--rm", "-it", "busybox", "true")
        screen.read_until("pending: Resources", 60)
        screen.write("\x03")
        assert screen.ended() == 130


@pytest.mark.nightly
def test_docker_with_a_partition_that_is_down(docker: Docker) -> None:
    with cluster.partition_down():
        docker.must("run", "--detach", "--name", "one", "busybox", "true")
        wait_until("why", lambda: "PartitionDown" in docker.run("logs", "one").stderr, QUICK)
        docker.must("rm", "--force", "one")


# containerd


def test_ctr_run(containerd: Containerd) -> None:
    words = (*containerd.run_options, "--rm", IMAGE, "one", "sh", "-c", "echo ran; exit 7")
    with cluster.full(containerd.site.user):
        process = begin(containerd, *words)
        wait_until("it is up", lambda: "RUNNING" in containerd.must("task", "ls"), QUICK)
        done = containerd.run("task", "exec", "--exec-id", "two", "one", "true")
        assert " exec is not possible yet: job " in done.stderr
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, b"ran\n")
    assert BUSY.search(err.decode())
    assert ALLOCATED.search(err.decode().splitlines()[-1])


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, nightly(signal.SIGINT)])
def test_ctr_run_gets_a_signal(containerd: Containerd, number: signal.Signals) -> None:
    words = (*containerd.run_options, "--rm", IMAGE, "one", "true")
    with cluster.full(containerd.site.user):
        process = begin(containerd, *words)
        wait_until("it is up", lambda: "RUNNING" in containerd.must("task", "ls"), QUICK)
        process.send_signal(number)
        process.communicate(timeout=QUICK)
        assert process.returncode == 128 + number


def test_ctr_task_kill_and_rm(containerd: Containerd) -> None:
    words = (*containerd.run_options, "--detach", IMAGE, "one", "true")
    with cluster.full(containerd.site.user):
        containerd.must(*words)
        assert "RUNNING" in containerd.must("task", "ls")
        containerd.must("task", "kill", "one")
        wait_until("its end", lambda: "STOPPED" in containerd.must("task", "ls"), QUICK)
        containerd.must("task", "rm", "one")
        containerd.must("container", "rm", "one")


@pytest.mark.nightly
def test_ctr_with_a_partition_that_is_down(containerd: Containerd) -> None:
    words = (*containerd.run_options, "--rm", IMAGE, "one", "true")
    with cluster.partition_down():
        process = begin(containerd, *words)
        wait_until("it is up", lambda: "RUNNING" in containerd.must("task", "ls"), QUICK)
        assert process.stderr is not None
        assert "pending: PartitionDown (" in process.stderr.readline().decode()
        containerd.must("task", "kill", "one")
        process.communicate(timeout=QUICK)
    assert process.returncode == 143
