"""podman on this machine does not notice that supervisors die: others adopt its containers."""

from collections.abc import Iterator

import pytest

from tests.harness import users
from tests.harness.adoption import COUNTS, goes_on_with_all, kill_successors_too
from tests.harness.nightly import nightly
from tests.harness.podman import Podman, podman_of
from tests.harness.terminal import open_terminal

_ANY_PIDS = ("--pids-limit", "0")


@pytest.fixture(scope="module", params=[nightly("root"), "rootless"])
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
    container = here.must(*run_words("--detach", "busybox", "sh", "-c", COUNTS)).strip()
    goes_on_with_all(here, container)


@pytest.mark.nightly
def test_podman_with_a_terminal(here: Podman) -> None:
    screen, slave = open_terminal()
    script = "echo it is up; read line; echo got $line; exit 7"
    words = run_words("--interactive", "--tty", "busybox", "sh", "-c", script)
    running = here.popen(*words, stdin=slave, stdout=slave, stderr=slave)
    screen.read_until("it is up")
    kill_successors_too(here.site)
    screen.says_got()
    assert running.wait(30) == 7
    here.must("rm", "--all")


def test_a_pod_of_podman(here: Podman) -> None:
    infra = ("--infra-image", "busybox", "--infra-command", "sleep 600", "--network", "none")
    here.must("pod", "create", "--name", "p", *infra)
    of_it = ("run", *_ANY_PIDS, "--pod", "p", "--detach", "busybox", "sh", "-c", COUNTS)
    containers = [here.must(*of_it).strip() for _ in range(2)]
    kill_successors_too(here.site)
    for container in containers:
        assert here.must("exec", container, "echo", "in it") == "in it\n"
        here.must("stop", "--time", "20", container)
        assert here.must("wait", container) == "7\n"
    here.must("pod", "rm", "--force", "--time", "0", "p")
