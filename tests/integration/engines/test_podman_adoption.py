"""podman does not notice that a supervisor dies: another one adopts its containers."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.harness import cluster
from tests.harness.adoption import COUNTS, ECHO, counted, echoes, ends
from tests.harness.life import Collector
from tests.harness.podman import RUN, Podman, rootless_podman, write_kube
from tests.harness.processes import signal_quietly
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.by_shim


@pytest.fixture(scope="module")
def _podman() -> Iterator[Podman]:
    with rootless_podman(cgroup2=True) as podman:
        yield podman


def kill_supervisors(podman: Podman) -> None:
    """SIGKILL for all of them."""
    supervisors = wait_until("a supervisor", podman.site.supervisors, 30)
    for supervisor in supervisors:
        signal_quietly(supervisor, signal.SIGKILL)


def is_up(podman: Podman, container: str) -> None:
    wait_until("it is up", lambda: "\n9\n" in podman.must("logs", container), 30)


def grows(podman: Podman, container: str) -> None:
    """Hold that it says more and more."""
    count = podman.must("logs", container).count("\n")
    wait_until("more", lambda: podman.must("logs", container).count("\n") > count + 10, 30)


def has_said_all(podman: Podman, container: str) -> None:
    lines = podman.must("logs", container).split()
    assert lines == counted(len(lines))


def test_podman_goes_on(podman: Podman) -> None:
    container = podman.must(*RUN, "--detach", "busybox", "sh", "-c", COUNTS).strip()
    is_up(podman, container)
    kill_supervisors(podman)
    assert podman.must("exec", container, "echo", "in it") == "in it\n"
    grows(podman, container)
    podman.must("stop", "--time", "20", container)
    assert podman.must("wait", container) == "7\n"
    has_said_all(podman, container)
    podman.must("rm", container)


def test_interactive(podman: Podman, dice: random.Random) -> None:
    """Numbered lines go in and come back, and nothing of them is lost or doubled."""
    process = podman.popen(
        *RUN, "--rm", "--interactive", "busybox", "sh", "-c", "cat; exit 7",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    data = b"".join(b"%07d\n" % number for number in range(500_000))
    output = Collector(os.dup(process.stdout.fileno()))
    wait_until("it runs", lambda: podman.must("ps", "--quiet"), 60)
    for at in range(0, len(data), len(data) // 4):
        kill_supervisors(podman)
        process.stdin.write(data[at : at + len(data) // 4])
        time.sleep(dice.uniform(0, 0.3))
    process.stdin.close()
    assert process.wait(60) == 7
    process.stdout.close()
    assert output.all(60) == data


def test_programs_of_exec_go_on(podman: Podman, dice: random.Random) -> None:
    """`podman exec`, with and without a terminal, and a reader of the container's log."""
    container = podman.must(*RUN, "--detach", "busybox", "sh", "-c", COUNTS).strip()
    is_up(podman, container)
    pipe = subprocess.PIPE
    log = podman.popen(
        "logs", "--follow", container, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    terminal, own = open_terminal()
    typing = ("exec", "--interactive", "--tty", container, "sh", "-c", _ECHO)
    typed = podman.popen(*typing, stdin=own, stdout=own, stderr=own)
    os.close(own)
    terminal.read_until("up", 60)
    words = ("exec", "--interactive", container, *ECHO)
    with podman.popen(*words, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        for number in range(3):
            echoes(program)
            kill_supervisors(podman)
            time.sleep(dice.uniform(0, 0.3))
            terminal.write(f"{number}\n")
            terminal.read_until(f"{number}\n", 30)
        echoes(program)
        ends(program)
    terminal.write("end\n")
    assert typed.wait(30) == 7
    terminal.close()
    podman.must("stop", "--time", "20", container)
    assert podman.must("wait", container) == "7\n"
    followed, _ = log.communicate(timeout=30)
    assert followed.decode().split() == podman.must("logs", container).split()
    has_said_all(podman, container)
    podman.must("rm", container)


def the_job(podman: Podman) -> str:
    [job] = cluster.jobs(podman.site.user)
    return job.split()[0]


def test_a_pod_goes_on(podman: Podman) -> None:
    """Its infra container, its members, and those that come later, in its namespaces."""
    podman.must("pod", "create", "--name", "pod", "--network", "host", "--hostname", "together")
    where = ("run", *RUN[3:], "--pod", "pod", "--detach", "busybox", "sh", "-c")
    one, two = (podman.must(*where, COUNTS).strip() for _ in range(2))
    for container in (one, two):
        is_up(podman, container)
    job = the_job(podman)
    for _ in range(2):
        kill_supervisors(podman)
        three = podman.must(*where, COUNTS).strip()
        for container in (one, two, three):
            grows(podman, container)
            assert podman.must("exec", container, "hostname") == "together\n"
    uts = {podman.must("exec", name, "readlink", "/proc/self/ns/uts") for name in (one, three)}
    assert len(uts) == 1
    assert the_job(podman) == job
    podman.must("stop", "--time", "20", one)
    assert podman.must("wait", one) == "7\n"
    grows(podman, two)
    podman.must("pod", "stop", "--time", "20", "pod")
    assert podman.must("wait", two, three) == "7\n7\n"
    for container in (one, two, three):
        has_said_all(podman, container)
    podman.must("pod", "rm", "pod")
    wait_while("the job", lambda: cluster.jobs(podman.site.user), 20)


def test_kube_play_goes_on(podman: Podman) -> None:
    podman.must("kube", "play", "--network", "host", write_kube(podman, COUNTS))
    for name in ("web-one", "web-two"):
        is_up(podman, name)
    job = the_job(podman)
    kill_supervisors(podman)
    for name in ("web-one", "web-two"):
        grows(podman, name)
    assert the_job(podman) == job
    podman.must("pod", "restart", "web")
    for name in ("web-one", "web-two"):
        grows(podman, name)
    podman.must("pod", "rm", "--force", "--time", "20", "web")
    wait_while("the job", lambda: cluster.jobs(podman.site.user), 20)


_ECHO = "stty -echo -onlcr; echo up; while read n && [ $n != end ]; do echo $n; done; exit 7"


def test_terminal(podman: Podman) -> None:
    """What is typed at `podman run -it` arrives, and its answers."""
    terminal, own = open_terminal()
    process = podman.popen(
        *RUN, "--rm", "--interactive", "--tty", "busybox", "sh", "-c", _ECHO,
        stdin=own, stdout=own, stderr=own,
    )  # fmt: skip
    os.close(own)
    terminal.read_until("up", 60)
    for number in range(3):
        kill_supervisors(podman)
        lines = "".join(f"{number}{line:03}\n" for line in range(300))
        terminal.write(lines)
        assert terminal.read_until(f"{number}299\n", 30).endswith(lines)
    terminal.write("end\n")
    assert process.wait(60) == 7
    terminal.close()


def test_attach_to_a_terminal_that_was_detached(podman: Podman) -> None:
    container = podman.must(*RUN, "-dit", "busybox", "sh", "-c", _ECHO).strip()
    wait_until("it is up", lambda: "up" in podman.must("logs", container), 60)
    kill_supervisors(podman)
    terminal, own = open_terminal()
    process = podman.popen("attach", container, stdin=own, stdout=own, stderr=own)
    os.close(own)
    time.sleep(1)
    for number in range(3):
        terminal.write(f"line{number}\n")
        terminal.read_until(f"line{number}", 30)
        kill_supervisors(podman)
    terminal.write("end\n")
    process.wait(60)
    assert podman.must("wait", container) == "7\n"
    lines = podman.must("logs", container).split()
    assert lines == ["up", "line0", "line1", "line2"]
    podman.must("rm", container)
    terminal.close()
