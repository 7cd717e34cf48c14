"""On this machine the pid that an engine gets is the container's own first process.

Everything that podman does with that pid goes to the container, as with runc beside it, and
nothing to this machine: files of it with the same names stay what they are.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import users
from tests.harness.nightly import nightly
from tests.harness.podman import Podman, podman_of

# podman of root sets a limit of its own, which runtimes refuse where cgroups have no `pids`
ANY_PIDS = ("--pids-limit", "0")


class Beside:
    """Podman on this machine, with one of two runtimes.

    Attributes:
        ours: Whether that is scrun.
    """

    def __init__(self, podman: Podman, runtime: str) -> None:
        self.ours = runtime == "scrun"
        self.podman = podman
        self._runtime = () if self.ours else ("--runtime", runtime)

    def must(self, *words: str) -> str:
        """Call podman."""
        return self.podman.must(*self._runtime, *words)

    def new(self, *words: str) -> str:
        """Run a container without a network."""
        return self.must("run", "--network", "none", *ANY_PIDS, *words)

    def pid(self, container: str) -> int:
        """Return the pid that podman knows."""
        return int(self.must("inspect", container, "--format", "{{.State.Pid}}"))


@pytest.fixture(scope="module", params=[nightly("root"), "rootless"])
def _podman(request: pytest.FixtureRequest) -> Iterator[Podman]:
    user = users.root() if request.param == "root" else users.ordinary()
    with podman_of(user, "local") as podman:
        yield podman


@pytest.fixture(params=["scrun", nightly("runc")])
def beside(_podman: Podman, request: pytest.FixtureRequest) -> Iterator[Beside]:
    yield Beside(_podman, request.param)
    _podman.run("pod", "rm", "--all", "--force", "--time", "0")
    _podman.run("rm", "--all", "--force", "--time", "0")


@pytest.fixture
def running(beside: Beside) -> Beside:
    """One with a container c1 that runs."""
    beside.new("--detach", "--name", "c1", "--hostname", "inside", "busybox", "sleep", "600")
    return beside


@pytest.fixture
def marker() -> Iterator[Path]:
    """A file of this machine, which stays as it is; the container has a directory for it."""
    path = Path(f"/tmp/scrun-marker-{uuid.uuid4().hex}")
    path.write_text(f"this machine's {uuid.uuid4()}\n")
    path.chmod(0o666)
    before = _digest(path)
    yield path
    assert _digest(path) == before
    path.unlink()


def _digest(path: Path) -> tuple[str, int]:
    return hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns


def test_cp_into_it(running: Beside, marker: Path) -> None:
    source = running.podman.site.base / "source"
    source.write_text("for the container\n")
    running.must("cp", str(source), f"c1:{marker}")
    assert running.must("exec", "c1", "cat", str(marker)) == "for the container\n"


def test_cp_out_of_it(running: Beside, marker: Path) -> None:
    running.must("exec", "c1", "sh", "-c", f"echo the container >{marker}")
    target = running.podman.site.base / "target"
    running.must("cp", f"c1:{marker}", str(target))
    assert target.read_text() == "the container\n"


def test_cp_of_what_only_this_machine_has(running: Beside, marker: Path) -> None:
    target = running.podman.site.base / "never"
    done = running.podman.run("cp", f"c1:{marker}", str(target))
    assert done.returncode != 0
    assert "could not be found" in done.stderr
    assert not target.exists()


def test_top(running: Beside, marker: Path) -> None:
    _, *rows = running.must("top", "c1").splitlines()
    assert len(rows) == 1
    assert rows[0].endswith("sleep 600 ")


def test_namespaces_of_a_container(running: Beside, marker: Path) -> None:
    for kind in ("pid", "ipc", "uts", "net"):
        option = f"--{'network' if kind == 'net' else kind}=container:c1"
        theirs = os.readlink(f"/proc/{running.pid('c1')}/ns/{kind}")
        assert theirs != os.readlink(f"/proc/self/ns/{kind}")
        network = () if kind == "net" else ("--network", "none")
        words = ["run", "--rm", *ANY_PIDS, *network, option]
        there = running.must(*words, "busybox", "readlink", f"/proc/self/ns/{kind}")
        assert there.strip() == theirs
        if kind == "uts":
            assert running.must(*words, "busybox", "hostname") == "inside\n"
        if kind == "pid":
            _, *processes = running.must(*words, "busybox", "ps", "-o", "args").splitlines()
            assert processes == ["sleep 600", "ps -o args"]


def test_members_of_a_pod(beside: Beside, marker: Path) -> None:
    infra = ("--infra-image", "busybox", "--infra-command", "sleep 600", "--network", "none")
    beside.must("pod", "create", "--name", "p1", "--hostname", "of-the-pod", *infra)
    beside.must(
        "run", "--detach", *ANY_PIDS, "--pod", "p1", "--name", "c1", "busybox", "sleep", "9"
    )
    name = beside.must("exec", "c1", "hostname")
    assert name == "of-the-pod\n"
    first = beside.pid(
        beside.must("pod", "inspect", "p1", "--format", "{{.InfraContainerID}}").strip()
    )
    for kind in ("ipc", "uts", "net"):
        shared = os.readlink(f"/proc/{first}/ns/{kind}")
        assert os.readlink(f"/proc/{beside.pid('c1')}/ns/{kind}") == shared
        assert os.readlink(f"/proc/self/ns/{kind}") != shared


def test_stats(running: Beside, marker: Path) -> None:
    """They are those of the container's cgroup; without cgroup v2 a user's have none."""
    done = running.podman.run("stats", "--no-stream", "--format", "json", "c1")
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers")
    if running.podman.site.user.uid and not version_2.exists():
        assert "not supported in rootless mode without cgroups v2" in done.stderr
        return
    [stats] = json.loads(done.stdout)
    assert stats["name"] == "c1"
    if not version_2.exists() or "pids" in version_2.read_text():
        assert int(stats["pids"]) == 1
    assert os.path.basename(Path(f"/proc/{running.pid('c1')}/cgroup").read_text()) != "\n"


def test_the_monitor_is_its_parent(running: Beside) -> None:
    status = Path(f"/proc/{running.pid('c1')}/stat").read_text()
    parent = int(status.rpartition(")")[2].split()[1])
    assert Path(f"/proc/{parent}/comm").read_text() == "conmon\n"


@pytest.mark.parametrize("script", ["exit 7", nightly("kill -9 $$")])
def test_its_exit_status(beside: Beside, script: str) -> None:
    """The first process of a PID namespace takes no signal of its own: it goes on."""
    done = beside.podman.run(*beside._runtime, "run", "--network", "none", *ANY_PIDS,
        "--name", "c1", "busybox", "sh", "-c", f"{script}; exit 5")  # fmt: skip
    assert done.returncode == (7 if script == "exit 7" else 5)


def test_killed_from_outside(running: Beside) -> None:
    os.kill(running.pid("c1"), 9)
    assert running.must("wait", "c1") == "137\n"
