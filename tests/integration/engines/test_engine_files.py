"""What engines read of a running container in their own storage is what the container has.

That is `docker cp`, `export`, `diff` and `commit`, and `podman export`, `mount`, `diff` and
`commit`. `test_live_files` has `podman cp`, which goes by the anchor.
"""

import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Event

import pytest

from tests.harness.client import Client
from tests.harness.docker import Docker
from tests.harness.nightly import nightly, often
from tests.harness.overlays import STAYS, hidden_store, shared_store, with_store
from tests.harness.podman import RUN, Podman, podman_of
from tests.harness.processes import peak, processes_of, shims_of, signal_quietly
from tests.harness.program import run_program
from tests.harness.squashfs import fuse_for_all
from tests.harness.users import ordinary, root
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.by_shim

CHANGES = f"echo made >/made; rm /bin/tac; mkdir /srv; echo x >/srv/x; {STAYS}"
NOTHING = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
STORAGE = '[staging]\nlive_files = "storage"\n'
FOUND = {"A /made", "C /bin", "D /bin/tac", "A /srv", "A /srv/x"}


@contextmanager
def hidden_docker() -> Iterator[Docker]:
    with Docker(storage="overlay2", hidden=True) as docker:
        with_store(docker)
        yield docker


@contextmanager
def without_files() -> Iterator[Docker]:
    with Docker(storage="overlay2") as docker:
        settings = docker.base / "scrun.toml"
        settings.write_text(settings.read_text() + '\n[staging]\nlive_files = "off"\n')
        yield docker


PLACES: dict[str, Callable[[], AbstractContextManager[Docker | Podman]]] = {
    "docker, overlay2": partial(Docker, storage="overlay2"),
    "docker, overlay2 that nodes do not see": hidden_docker,
    "docker, vfs": Docker,
    "podman, overlay": partial(shared_store, STORAGE),
    "podman, overlay that nodes do not see": partial(hidden_store, STORAGE),
    "podman, vfs": partial(podman_of, ordinary(), settings=STORAGE),
    "podman of root, overlay": partial(podman_of, root(), storage="overlay", settings=STORAGE),
}


@pytest.fixture(params=PLACES, scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[Docker | Podman]:
    fuse_for_all()
    with PLACES[request.param]() as found:
        yield found


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    with Docker(storage="overlay2") as found:
        yield found


def run(engine: Client, *words: str) -> str:
    options = RUN if isinstance(engine, Podman) else ("run",)
    return engine.must(*options, *words, timeout=90)


@contextmanager
def begun(engine: Docker | Podman, *options: str, script: str = CHANGES) -> Iterator[str]:
    container = run(engine, "--detach", *options, "busybox", "sh", "-c", script).strip()
    try:
        wait_until("it is up", lambda: engine.must("logs", container).startswith("up\n"))
        yield container
    finally:
        engine.run("rm", "--force", container)


def given(engine: Docker | Podman, text: str) -> str:
    path = engine.site.base / "b" / "given"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    engine.site.user.give(path)
    return str(path)


def copied(engine: Docker | Podman, container: str, path: str) -> str:
    place = engine.site.base / "b" / "taken"
    place.unlink(missing_ok=True)
    engine.must("cp", f"{container}:{path}", str(place))
    return place.read_text()


def exported(engine: Docker | Podman, container: str) -> set[str]:
    path = engine.site.base / "b" / "exported.tar"
    path.unlink(missing_ok=True)
    engine.must("export", "--output", str(path), container, timeout=120)
    with tarfile.open(path) as archive:
        return {name.removeprefix("./").rstrip("/") for name in archive.getnames()}


def differences(engine: Docker | Podman, container: str) -> set[str]:
    return {*engine.must("diff", container, timeout=120).splitlines()}


def mounts_of(engine: Docker | Podman) -> list[str]:
    """What is mounted by us where the engine's commands look."""
    if isinstance(engine, Docker):
        text = Path(f"/proc/{engine.pid}/mountinfo").read_text()
    elif engine.site.user.uid == 0:
        text = Path("/proc/self/mountinfo").read_text()
    else:
        text = engine.must("unshare", "cat", "/proc/self/mountinfo")
    base = str(engine.site.base)
    return [line for line in text.splitlines() if base in line and " fuse scrun " in line]


def are_right(engine: Docker | Podman, container: str) -> None:
    """All that reads the storage agrees with what the container has done."""
    assert copied(engine, container, "/made") == "made\n"
    assert differences(engine, container) >= FOUND
    names = exported(engine, container)
    assert {"made", "srv/x", "etc/passwd"} <= names
    assert "bin/tac" not in names
    assert not [name for name in names if name.startswith(("proc/", "sys/"))]
    engine.must("commit", container, "changed", timeout=120)
    try:
        script = "cat /made /srv/x; ls /bin/tac 2>/dev/null || echo none"
        assert run(engine, "--rm", "changed", "sh", "-c", script) == "made\nx\nnone\n"
    finally:
        engine.must("rmi", "--force", "changed")


@pytest.mark.covers("docker cp, diff, export, commit")
@pytest.mark.covers("podman cp, mount, unmount")
def test_while_it_runs_and_after_its_end(engine: Docker | Podman) -> None:
    with begun(engine) as container:
        are_right(engine, container)
        engine.must("cp", given(engine, "given\n"), f"{container}:/etc/given")
        assert engine.must("exec", container, "cat", "/etc/given") == "given\n"
        engine.must("exec", container, "sh", "-c", "rm /etc/given; echo more >>/made; rm -r /srv")
        assert copied(engine, container, "/made") == "made\nmore\n"
        assert "srv" not in exported(engine, container)
        assert not {"A /etc/given", "A /srv"} & differences(engine, container)
        engine.must("exec", container, "sh", "-c", "echo made >/made; mkdir /srv; echo x >/srv/x")
        engine.must("stop", "--time", "5", container)
        are_right(engine, container)
        assert mounts_of(engine) == []


@pytest.mark.covers("docker cp, diff, export, commit")
def test_one_that_is_started_again(docker: Docker) -> None:
    """What it had changed before is a part of its own layer."""
    script = "test -e /made || echo old >/old; echo made >/made; rm -f /bin/tac; mkdir -p /srv;"
    with begun(docker, script=f"{script} echo x >/srv/x; {STAYS}") as container:
        docker.must("restart", container)
        wait_until("again", lambda: docker.must("logs", container).count("up\n") == 2)
        are_right(docker, container)
        assert "A /old" in differences(docker, container)
        docker.must("exec", container, "rm", "/old")
        assert "A /old" not in differences(docker, container)


@pytest.mark.covers("docker cp, diff, export, commit")
def test_what_it_mounts_is_not_exported(docker: Docker) -> None:
    options = ("--tmpfs", "/scratch", "--volume", "/srv/of-docker")
    with begun(docker, *options, script=f"echo x >/scratch/x; {CHANGES}") as container:
        names = exported(docker, container)
        assert "scratch" in names
        assert not [name for name in names if name.startswith(("scratch/", "dev/pts/", "proc/"))]


@pytest.mark.covers("docker cp, diff, export, commit")
def test_a_read_only_one(docker: Docker) -> None:
    with begun(docker, "--read-only", script=STAYS) as container:
        assert "root" in copied(docker, container, "/etc/passwd")
        done = docker.run("cp", given(docker, "given\n"), f"{container}:/etc/given")
        assert done.returncode
        assert "read-only" in done.stderr


@pytest.mark.by_shim
@pytest.mark.covers("docker cp, diff, export, commit")
def test_another_supervisor_goes_on(docker: Docker) -> None:
    with begun(docker) as container:
        assert copied(docker, container, "/made") == "made\n"
        [supervisor] = docker.site.supervisors()
        signal_quietly(supervisor, signal.SIGKILL)
        wait_until("another", lambda: docker.site.supervisors() not in ([], [supervisor]), 30)
        found = partial(docker.run, "cp", f"{container}:/made", "-")
        wait_until("it goes on", lambda: found().returncode == 0, 20)
        assert len(mounts_of(docker)) == 1
        assert differences(docker, container) >= FOUND
    wait_while("mounts", lambda: mounts_of(docker), 10)


def test_supervisor_and_keeper_are_killed(docker: Docker) -> None:
    """Nobody goes on; docker still removes the container, and what covered its files."""
    with begun(docker) as container:
        place = merged(docker, container)
        docker.site.kill_supervisors()
        docker.must("rm", "--force", container, timeout=60)
    wait_while("mounts", lambda: place in Path(f"/proc/{docker.pid}/mountinfo").read_text(), 10)
    assert not os.path.exists(os.path.dirname(place))


def merged(docker: Docker, container: str) -> str:
    return docker.must("inspect", "--format", "{{.GraphDriver.Data.MergedDir}}", container).strip()


def test_nothing_is_left_when_the_anchor_is_killed(docker: Docker) -> None:
    """docker unmounts at once what is on top: that was ours, so we unmount docker's."""
    with begun(docker) as container:
        place = merged(docker, container)
        pid = int(docker.must("inspect", "--format", "{{.State.Pid}}", container))
        os.kill(pid, signal.SIGKILL)
        docker.must("wait", container)
        docker.must("rm", container)
    wait_while("mounts", lambda: place in Path(f"/proc/{docker.pid}/mountinfo").read_text(), 10)
    assert not os.path.exists(os.path.dirname(place))


def test_nothing_runs_on_the_node_until_somebody_asks(docker: Docker) -> None:
    with begun(docker) as container:
        log = record(docker, container) / "log"
        assert "storage see the root file system" not in log.read_text()
        assert len(mounts_of(docker)) == 1
        [supervisor] = docker.site.supervisors()
        place, idle = merged(docker, container), programs_of(docker, container)
        # where dockerd lacks a controller, its mounts are its own
        there = ("nsenter", "--target", str(docker.pid), "--mount")
        assert place not in run_program([*there, "df"]).stdout
        place = f"/proc/{docker.pid}/root{place}"
        found = os.stat(place)
        assert programs_of(docker, container) == idle
        assert os.listdir(place)
        assert programs_of(docker, container) > idle
        assert os.stat(place).st_mode == found.st_mode
    links = [os.readlink(path) for path in Path(f"/proc/{supervisor}/fd").iterdir()]
    assert "/dev/fuse" not in links


def programs_of(engine: Docker | Podman, container: str) -> int:
    """How many processes the shim has begun that still run."""
    shim = min(shims_of(job_of(engine, container)))  # the others are its children
    return len(Path(f"/proc/{shim}/task/{shim}/children").read_text().split())


def record(engine: Docker | Podman, container: str) -> Path:
    records = engine.records if isinstance(engine, Docker) else engine.site.base / "x" / "scrun"
    return records / container


def job_of(engine: Docker | Podman, container: str) -> str:
    log = (record(engine, container) / "log").read_text()
    return log.split("Granted job allocation ")[1].split('"')[0].split()[0]


LIVES = int(os.environ.get("SCRUN_LIVES") or often(6, 300))


def copy_until(engine: Docker | Podman, container: str, over: Event, number: int) -> None:
    """Copy files in and out; of a client that is killed, another one goes on. None hangs."""
    draw, path = Random(number), given(engine, "x" * 3_000_000)
    ways = (("cp", f"{container}:/bin", "-"), ("cp", path, f"{container}:/tmp/x"))
    while not over.is_set():
        with engine.popen(*draw.choice(ways), **NOTHING) as client:
            if number % 3 == 0:
                over.wait(draw.random())
                client.kill()
            client.wait(60)  # it raises if that hangs


def stuck(engine: Docker | Podman) -> list[int]:
    """Processes that wait and cannot be killed."""
    found = []
    for process in processes_of(str(engine.site.base)):
        with suppress(OSError):
            state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            found += [process.pid] * (state == "D")
    return found


@pytest.mark.by_shim
@pytest.mark.parametrize("place", ["docker, overlay2", "podman, overlay"])
def test_lives_in_which_things_are_killed_while_files_are_copied(place: str) -> None:
    """SCRUN_LIVES says how many."""
    fuse_for_all()
    with PLACES[place]() as engine, ThreadPoolExecutor(1) as pool:
        for number in range(LIVES):
            draw, over = Random(number), Event()
            with begun(engine, script=STAYS) as container:
                copying = pool.submit(copy_until, engine, container, over, number)
                try:
                    time.sleep(draw.random())
                    if number % 3 == 1:
                        signal_quietly(engine.site.supervisors()[-1], signal.SIGKILL)
                    elif number % 3 == 2:
                        for shim in shims_of(job_of(engine, container)):
                            signal_quietly(shim, signal.SIGKILL)
                    time.sleep(draw.random())
                    if number % 2:
                        engine.run("rm", "--force", container)
                finally:
                    over.set()
                copying.result(90)
            wait_while(f"mounts of life {number}", lambda: mounts_of(engine), 15)
            wait_while(f"stuck in life {number}", lambda: stuck(engine), 15)


@pytest.mark.parametrize(
    "begin",
    [
        partial(shared_store, '[staging]\nlive_files = "auto"\n'),
        partial(shared_store, '[staging]\nlive_files = "off"\n'),
        without_files,
    ],
    ids=["podman as it is", "podman, off", "docker, off"],
)
def test_switched_off(begin: Callable[[], AbstractContextManager[Docker | Podman]]) -> None:
    with begin() as engine, begun(engine) as one:
        assert not mounts_of(engine)
        assert not differences(engine, one) & FOUND
        assert "made" not in exported(engine, one)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [3000, nightly(200_000)])
def test_a_directory_with_very_many_files(docker: Docker, count: int) -> None:
    """dockerd asks for each of them; nobody has all in memory, and others do not wait."""
    patience = 60 + count // 500
    made = f"mkdir /srv; cd /srv; seq {count} | xargs touch; {STAYS}"
    container = run(docker, "--detach", "busybox", "sh", "-c", made).strip()
    try:
        wait_until("it is up", lambda: docker.must("logs", container) == "up\n", patience)
        assert copied(docker, container, "/srv/7") == ""
        [supervisor] = docker.site.supervisors()
        before = peak(supervisor)
        piped = {**NOTHING, "stdout": subprocess.PIPE}
        with docker.popen("cp", f"{container}:/srv", "-", **piped) as archive:
            assert archive.stdout is not None
            with tarfile.open(fileobj=archive.stdout, mode="r|") as found:
                names = sum(1 for _ in found)
            assert archive.wait() == 0
        assert names == count + 1
        assert peak(supervisor) - before < 16 << 10
        assert copied(docker, container, "/srv/8") == ""
    finally:
        # else all of them come back
        docker.must("exec", container, "rm", "-r", "/srv", timeout=patience)
        docker.must("rm", "--force", container)
