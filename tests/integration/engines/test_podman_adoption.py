"""podman does not notice that a supervisor dies: another one adopts its containers."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.harness.life import Collector
from tests.harness.podman import RUN, Podman, rootless_podman
from tests.harness.processes import signal_quietly
from tests.harness.wait import wait_until

pytestmark = pytest.mark.by_shim

_COUNTS = "trap 'exit 7' TERM; n=0; while :; do echo $n; n=$((n+1)); sleep 0.02; done"


@pytest.fixture(scope="module")
def _podman() -> Iterator[Podman]:
    with rootless_podman(cgroup2=True) as podman:
        yield podman


def kill_supervisors(podman: Podman) -> None:
    """SIGKILL for all of them."""
    supervisors = wait_until("a supervisor", podman.site.supervisors, 30)
    for supervisor in supervisors:
        signal_quietly(supervisor, signal.SIGKILL)


def test_podman_goes_on(podman: Podman) -> None:
    container = podman.must(*RUN, "--detach", "busybox", "sh", "-c", _COUNTS).strip()
    wait_until("it is up", lambda: "\n9\n" in podman.must("logs", container), 30)
    kill_supervisors(podman)
    assert podman.must("exec", container, "echo", "in it") == "in it\n"
    count = podman.must("logs", container).count("\n")
    wait_until("more", lambda: podman.must("logs", container).count("\n") > count + 10, 30)
    podman.must("stop", "--time", "20", container)
    assert podman.must("wait", container) == "7\n"
    lines = podman.must("logs", container).split()
    assert lines == [str(number) for number in range(len(lines))]
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
