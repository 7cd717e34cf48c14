"""What engines do with the pid of a running container never reaches this machine's own files.

Here without FUSE: so what they see are this machine's directories, where the nodes see them too.
`test_live_files` has the same with it.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import users
from tests.harness.containerd import IMAGE, Containerd
from tests.harness.docker import Docker
from tests.harness.nightly import nightly
from tests.harness.podman import RUN, Podman, podman_of, rootless_podman
from tests.harness.program import run_program
from tests.harness.wait import wait_until

STAYS = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"
NAME = f"scrun-marker-{os.getpid()}"
MARKER = Path("/tmp") / NAME
IN_ETC = Path("/etc") / NAME  # a faulty scrun writes here: no file that the host needs
OF_THE_HOST = (MARKER, IN_ETC, Path("/etc/hostname"), Path("/etc/hosts"))
NEW = Path(f"/{NAME}")
WITHOUT_FUSE = '[staging]\nlive_files = "off"\n'
LIMITS = RUN[3:]


@pytest.fixture(scope="module", params=[nightly("root"), "user"])
def engine(request: pytest.FixtureRequest) -> Iterator[Podman]:
    user = users.root() if request.param == "root" else users.ordinary()
    with podman_of(user, settings=WITHOUT_FUSE) as podman:
        yield podman


def digests() -> dict[Path, tuple[str, int]]:
    return {
        path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in OF_THE_HOST
    }


@pytest.fixture(autouse=True)
def _host_is_untouched() -> Iterator[None]:
    """Whatever a test does, the host's files are the same, and no other has come to /tmp."""
    for path in (MARKER, IN_ETC):
        path.write_text("the host's\n")
        path.chmod(0o666)
    before = digests()
    try:
        yield
        assert digests() == before
        assert sorted(path.name for path in MARKER.parent.glob(f"{NAME}*")) == [NAME]
        assert not NEW.exists()
    finally:
        for path in (MARKER, IN_ETC, NEW):
            path.unlink(missing_ok=True)


@contextmanager
def begun(podman: Podman, *options: str, script: str = STAYS) -> Iterator[str]:
    words = (*RUN, "--detach", *options, "busybox", "sh", "-c", script)
    container = podman.must(*words).strip()
    try:
        wait_until("it is up", lambda: podman.must("logs", container).startswith("up\n"))
        yield container
    finally:
        podman.must("rm", "--force", "--time", "1", container)


@pytest.fixture
def running(engine: Podman) -> Iterator[str]:
    with begun(engine) as container:
        yield container


def own_file(podman: Podman, content: str) -> str:
    """A file of podman's user, outside of all containers."""
    path = podman.site.base / "b" / "given"
    path.write_text(content)
    podman.site.user.give(path)
    return str(path)


def refused(podman: Podman, *words: str) -> str:
    done = podman.run("cp", *words)
    assert done.returncode == 125, done
    return done.stderr


@pytest.mark.covers("podman cp, mount, unmount")
@pytest.mark.parametrize(
    "path", [str(MARKER), nightly(str(IN_ETC)), str(NEW)], ids=["there", "in-etc", "new"]
)
def test_cp_both_ways(engine: Podman, running: str, path: str) -> None:
    engine.must("cp", own_file(engine, "given\n"), f"{running}:{path}")
    assert engine.must("exec", running, "cat", path) == "given\n"
    engine.must("exec", running, "sh", "-c", f"echo changed >{path}")
    assert engine.copied(running, path) == "changed\n"


@pytest.mark.covers("podman cp, mount, unmount")
def test_cp_finds_what_the_container_has_and_not_the_host(engine: Podman, running: str) -> None:
    said = refused(engine, f"{running}:/tmp/{NAME}", "-")
    assert "could not be found on container" in said
    hosts = engine.must("exec", running, "cat", "/etc/hosts")
    assert engine.copied(running, "/etc/hosts") == hosts


@pytest.mark.covers("podman cp, mount, unmount")
def test_cp_where_only_the_node_has_the_files(engine: Podman) -> None:
    """A tmpfs, a device, the node's /tmp: refused, and not another directory's files instead."""
    script = f"echo x >/scratch/x; {STAYS}"
    given = own_file(engine, "given\n")
    with begun(engine, "--tmpfs", "/scratch", "-v", "/tmp:/of-node", script=script) as container:
        for place in ("/scratch", "/of-node"):
            assert "no such process" in refused(engine, given, f"{container}:{place}/{NAME}-2")
            assert "no such process" in refused(engine, f"{container}:{place}", "-")
        assert "no such process" in refused(engine, given, f"{container}:/dev/{NAME}-2")
        assert "could not be found" in refused(engine, f"{container}:/of-node/{NAME}", "-")
        assert "could not be found" in refused(engine, f"{container}:/scratch/x", "-")
        # a copy of all would be without them
        everything = str(engine.site.base / "b" / "everything")
        assert "no such process" in refused(engine, f"{container}:/", everything)


@pytest.mark.covers("podman cp, mount, unmount")
def test_cp_to_volumes(engine: Podman) -> None:
    base = engine.site.base / "volumes"
    base.mkdir()
    engine.site.user.give(base)
    given = own_file(engine, "given\n")
    with begun(engine, "-v", f"{base}:/rw", "-v", f"{base}:/ro:ro") as container:
        engine.must("cp", given, f"{container}:/rw/file")
        assert engine.must("exec", container, "cat", "/rw/file") == "given\n"
        assert (base / "file").read_text() == "given\n"
        assert engine.copied(container, "/ro/file") == "given\n"
        assert "read-only" in refused(engine, given, f"{container}:/ro/more")
    (base / "file").unlink(missing_ok=True)
    base.rmdir()


def test_cp_into_a_read_only_container(engine: Podman) -> None:
    with begun(engine, "--read-only") as container:
        assert "read-only" in refused(engine, own_file(engine, "given\n"), f"{container}:/file")


@pytest.mark.covers("podman top")
def test_top_shows_no_process_of_the_host(engine: Podman, running: str) -> None:
    def top() -> str:
        done = engine.run("top", running, "pid", "hpid", "args")
        # podman reads of every process of the machine, and one may end meanwhile
        assert done.returncode == 0 or "cmdline: no such process" in done.stderr, done.stderr
        return done.stdout

    header, *rows = wait_until("rows", top).splitlines()
    assert header.split() == ["PID", "HPID", "COMMAND"]
    [row] = rows
    pid = engine.must("inspect", "--format", "{{.State.Pid}}", running).strip()
    name = engine.must("inspect", "--format", "{{.Id}}", running).strip()
    assert row.split()[:4] == ["1", pid, "scrun-anchor", name]
    assert "whose processes 'exec ID ps' shows" in row
    assert "sh -c trap" in engine.must("exec", running, "ps")


def with_runc(podman: Podman, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a container on this machine, in the place of scrun."""
    command = podman.command[: podman.command.index("--runtime")]
    return run_program(
        [
            *(*podman.site.user.prefix, *command, "--runtime", "runc", "run", "--rm", *LIMITS),
            *("--pids-limit", "0", *words),  # runc refuses one where cgroups have no pids
        ],
        env=podman.environment,
        cwd=podman.site.base,
    )


@pytest.mark.parametrize("kind", ["net", nightly("ipc"), nightly("uts"), "pid"])
def test_another_runtime_that_joins_it_is_not_in_the_hosts_namespaces(
    engine: Podman, kind: str
) -> None:
    with begun(engine, "--ipc", "shareable") as container:
        options = [f"--{kind}=container:{container}"]
        if kind != "net":
            options.append("--network=host")
        done = with_runc(engine, *options, "busybox", "readlink", f"/proc/self/ns/{kind}")
        if kind == "net" and engine.release >= (5, 0):
            return  # it names no network of a container that wants the host's
        assert done.stdout.strip() != os.readlink(f"/proc/self/ns/{kind}"), done
        assert done.returncode == 0, done.stderr


def test_members_of_a_pod(engine: Podman) -> None:
    engine.must("pod", "create", "--network", "host", "--name", "pod")
    words = ("run", *LIMITS, "--pod", "pod", "--detach", "busybox", "sh", "-c", STAYS)
    container = engine.must(*words).strip()
    infra = engine.must("pod", "inspect", "pod", "--format", "{{.InfraContainerID}}").strip()
    given = own_file(engine, "given\n")
    said = (engine.site.base / "x" / "scrun" / infra / "log").read_text()
    try:
        members = [container]
        if "the node mounts the layers" in said:  # newer podman gives it no image, but an overlay
            assert "read-only" in refused(engine, given, f"{infra}:/tmp-{NAME}")
            assert "could not be found" in refused(engine, f"{infra}:/tmp-{NAME}", "-")
        else:
            members.append(infra)
        for member in members:
            engine.must("cp", given, f"{member}:/tmp-{NAME}")
            assert engine.copied(member, f"/tmp-{NAME}") == "given\n"
        assert engine.must("exec", container, "cat", f"/tmp-{NAME}") == "given\n"
    finally:
        engine.must("pod", "rm", "--force", "--time", "0", "pod")


@pytest.mark.covers("podman cp, mount, unmount")
def test_cp_reaches_the_copy_of_a_root_file_system() -> None:
    """It has been asked for on overlay, and what changes in it is brought back."""
    settings = f'{WITHOUT_FUSE}overlay = "copy"\n'
    script = f"echo made >/made; {STAYS}"
    with (
        rootless_podman(storage="overlay", settings=settings) as podman,
        begun(podman, script=script) as container,
    ):
        assert podman.copied(container, "/made") == "made\n"
        podman.must("cp", own_file(podman, "given\n"), f"{container}:/tmp/{NAME}")
        assert podman.must("exec", container, "cat", f"/tmp/{NAME}") == "given\n"
        podman.must("stop", "--time", "5", container)
        assert podman.copied(container, f"/tmp/{NAME}") == "given\n"


@pytest.mark.covers("docker cp, diff, export, commit")
def test_docker_cp_and_top() -> None:
    """docker cp works on the storage, which is vfs here; dockerd has a ps of its own."""
    with Docker() as daemon:
        name = daemon.must("run", "--detach", "busybox", "sh", "-c", STAYS).strip()
        wait_until("it is up", lambda: daemon.must("logs", name))
        given = daemon.base / "given"
        given.write_text("given\n")
        daemon.must("cp", str(given), f"{name}:/tmp/{NAME}")
        assert daemon.must("exec", name, "cat", f"/tmp/{NAME}") == "given\n"
        pid = daemon.must("inspect", "--format", "{{.State.Pid}}", name).strip()
        assert Path(f"/proc/{pid}/root/tmp/{NAME}").read_text() == "given\n"
        assert "sh -c trap" in daemon.must("top", name)
        daemon.must("rm", "--force", name)


def test_the_pid_that_containerd_has() -> None:
    """`nerdctl cp` and the like go by /proc/PID/root."""
    with Containerd() as daemon:
        script = f"echo made >/tmp/{NAME}; exec sleep 600"
        daemon.must(*daemon.run_options, "--detach", IMAGE, "one", "sh", "-c", script)
        [_, (_, pid, status)] = [row.split() for row in daemon.must("task", "ls").splitlines()]
        assert status == "RUNNING"
        place = Path(f"/proc/{pid}/root/tmp/{NAME}")
        assert wait_until("it is made", lambda: place.exists() and place.read_text()) == "made\n"
        for kind in ("mnt", "pid", "net", "ipc", "uts", "cgroup"):
            assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
        daemon.must("task", "rm", "--force", "one")
        daemon.must("container", "rm", "one")
