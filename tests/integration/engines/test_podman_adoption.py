"""podman does not notice that a supervisor dies: another one adopts its containers."""

import signal
from collections.abc import Iterator

import pytest

from tests.harness.podman import RUN, Podman, rootless_podman
from tests.harness.processes import signal_quietly
from tests.harness.wait import wait_until

pytestmark = pytest.mark.by_shim

_COUNTS = "trap 'exit 7' TERM; n=0; while :; do echo $n; n=$((n+1)); sleep 0.02; done"


@pytest.fixture(scope="module")
def _podman() -> Iterator[Podman]:
    with rootless_podman(cgroup2=True) as podman:
        yield podman


def test_podman_goes_on(podman: Podman) -> None:
    container = podman.must(*RUN, "--detach", "busybox", "sh", "-c", _COUNTS).strip()
    wait_until("it is up", lambda: "\n9\n" in podman.must("logs", container), 30)
    supervisors = podman.site.supervisors()
    assert supervisors
    for supervisor in supervisors:
        signal_quietly(supervisor, signal.SIGKILL)
    assert podman.must("exec", container, "echo", "in it") == "in it\n"
    count = podman.must("logs", container).count("\n")
    wait_until("more", lambda: podman.must("logs", container).count("\n") > count + 10, 30)
    podman.must("stop", "--time", "20", container)
    assert podman.must("wait", container) == "7\n"
    lines = podman.must("logs", container).split()
    assert lines == [str(number) for number in range(len(lines))]
    podman.must("rm", container)
