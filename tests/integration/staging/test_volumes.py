"""Volumes that only the submit host has: docker's, podman's, in /dev/shm, in XDG_RUNTIME_DIR.

What a container writes is there afterwards, for the next container and for one beside it.
"""

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness.adoption import kill_all_supervisors, kill_supervisor
from tests.harness.docker import Docker
from tests.harness.nightly import nightly
from tests.harness.overlays import with_store
from tests.harness.podman import RUN, Podman, compose, given, rootless_podman
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

SLURM = pytest.mark.parametrize("site", ["slurm-user", "slurm-root"], indirect=True)
USER = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
STAYS = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"


@pytest.fixture
def volume(site: Site) -> Iterator[Path]:
    """A directory in this machine's memory."""
    path = Path(tempfile.mkdtemp(prefix="scrun-volume-", dir="/dev/shm"))
    (path / "file").write_text("old")
    for each in (path, path / "file"):
        site.user.give(each)
    yield path
    shutil.rmtree(path)


def left(site: Site) -> list[str]:
    """What is left of copies."""
    return [name for name in os.listdir(site.root) if name[0] == "~"]


def of_image(site: Site, *options: str, script: str) -> str:
    return site.must("run", *options, str(site.rootfs), "sh", "-c", script)


def begun(site: Site, *options: str, script: str) -> str:
    """Begin a container in the background."""
    words = ("run", "--detach", "--name", "one", *options, str(site.rootfs), "sh", "-c", script)
    site.must(*words)
    return "one"


@SLURM
@pytest.mark.covers("promise what a container writes to a volume is there afterwards")
def test_directory_and_file(site: Site, volume: Path) -> None:
    mounts = ("--mount", f"{volume}:/x")
    script = "echo made >/x/made; mkdir /x/d; ln -s ../made /x/d/link; cat /x/file"
    assert of_image(site, *mounts, script=script) == "old"
    assert (volume / "made").read_text() == "made\n"
    assert os.readlink(volume / "d" / "link") == "../made"
    assert of_image(site, *mounts, script="cat /x/made; rm /x/made") == "made\n"
    assert not (volume / "made").exists()
    of_image(site, "--mount", f"{volume}/file:/file", script="echo new >/file")
    assert (volume / "file").read_text() == "new\n"
    assert left(site) == []


@USER
def test_one_volume_in_another(site: Site, volume: Path) -> None:
    mounts = ("--mount", f"{volume}/file:/file", "--mount", f"{volume}:/x:ro")
    assert of_image(site, *mounts, script="echo new >/file; cat /x/file") == "new\n"
    assert (volume / "file").read_text() == "new\n"
    assert left(site) == []


@SLURM
def test_side_by_side(site: Site, volume: Path) -> None:
    mount = ("--mount", f"{volume}:/x")
    script = "while ! test -e /x/go; do sleep 0.05; done; echo done >/x/answer"
    done = begun(site, *mount, script=script)
    assert of_image(site, *mount, script="cat /x/file; touch /x/go") == "old"
    assert (volume / "go").exists()
    wait_until("it has ended", lambda: '"stopped"' in site.must("state", done))
    wait_until("its answer is here", lambda: (volume / "answer").exists())
    site.must("delete", "--force", done)
    assert left(site) == []


@USER
def test_read_only(site: Site, volume: Path) -> None:
    done = site.run(
        "run", "--mount", f"{volume}:/x:ro", str(site.rootfs), "sh", "-c", "cat /x/file; : >/x/no"
    )
    assert done.stdout == "old"
    assert "Read-only file system" in done.stderr
    assert left(site) == []


@USER
def test_what_both_have_changed(site: Site, volume: Path) -> None:
    """It stays as it is here; the container's is kept, and its status says that."""
    script = f"echo theirs >/x/file; echo up; {STAYS}"
    name = begun(site, "--mount", f"{volume}:/x", script=script)
    wait_until("it is up", lambda: "up" in site.must("logs", name))
    (volume / "file").write_text("mine")
    site.must("kill", name, "TERM")
    wait_until("it has ended", lambda: '"stopped"' in site.must("state", name))
    state = json.loads(site.must("state", name))["annotations"]
    assert state["org.scrun.exit_status"] == "125"
    assert state["org.scrun.reason"] == "scrun-failure"
    assert "file changed here while container one" in (site.root / "one" / "log").read_text()
    assert (volume / "file").read_text() == "mine"
    [kept] = left(site)
    assert (site.root / kept / "data" / "file").read_text() == "theirs\n"
    site.must("delete", "--force", name)
    shutil.rmtree(site.root / kept)


@USER
def test_too_much_is_refused(make_site: MakeSite, site: Site, volume: Path) -> None:
    small = make_site("slurm-user", settings="[staging]\ncopy_size = 1\n")
    (volume / "large").write_bytes(b"x" * (2 << 20))
    said = small.fails("run", "--mount", f"{volume}:/x", str(small.rootfs), "true")
    assert "more than 1 MiB: move it to a directory that the nodes share" in said
    assert left(small) == []


@USER
def test_sockets_are_left_out_with_a_word(site: Site, volume: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(volume / "socket"))
        site.user.give(volume / "socket")
        mount = ("--mount", f"{volume}:/x", "--mount", f"{volume}/socket:/run/socket")
        done = site.run("run", *mount, str(site.rootfs), "ls", "/x")
    assert done.stdout == "file\n"
    assert done.stderr.splitlines() == [
        f"scrun: no effect in a job: the mount /run/socket ({volume}/socket is a socket here), "
        "sockets, devices and mounts in /x (socket)"
    ]
    assert (volume / "socket").is_socket()


@USER
def test_owners_that_are_subordinate_ids(site: Site, volume: Path) -> None:
    """They come back as they went, though only a container's user may read the file."""
    script = "echo 1 >/x/theirs; chmod 600 /x/theirs; chown 7:8 /x/theirs; chown 9:9 /x"
    of_image(site, "--mount", f"{volume}:/x", script=script)
    status = (volume / "theirs").stat()
    assert len({status.st_uid, status.st_gid, volume.stat().st_uid, site.user.uid}) == 4
    again = "cat /x/theirs; stat -c %u:%g /x /x/theirs; rm /x/theirs; chown 0:0 /x"
    assert of_image(site, "--mount", f"{volume}:/x", script=again) == "1\n9:9\n7:8\n"
    assert os.listdir(volume) == ["file"]
    assert left(site) == []


@USER
@pytest.mark.parametrize("whom", ["one", "all"])
def test_a_supervisor_that_is_killed(site: Site, volume: Path, whom: str) -> None:
    """Its successor brings the volume back; without one, whoever deletes the container does."""
    script = f"echo made >/x/made; echo up; {STAYS}"
    name = begun(site, "--mount", f"{volume}:/x", script=script)
    wait_until("it is up", lambda: "up" in site.must("logs", name))
    (kill_all_supervisors if whom == "all" else kill_supervisor)(site)
    site.run("kill", name, "TERM")
    wait_until("it has ended", lambda: '"stopped"' in site.run("state", name).stdout)
    site.run("delete", "--force", name)
    wait_until("it is back", lambda: (volume / "made").exists())
    wait_while("copies", lambda: left(site))


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    """Its directory is not on the nodes, as /var/lib/docker."""
    with Docker(storage="vfs", hidden=True) as docker:
        with_store(docker)
        yield docker


def volumes_of(docker: Docker) -> list[Path]:
    return [*(docker.base / "d-hidden" / "volumes").glob("*/_data")]


@pytest.mark.parametrize("name", ["named", nightly("")], ids=["named", "anonymous"])
def test_docker(docker: Docker, name: str) -> None:
    where = f"{name}:/v" if name else "/v"
    script = f"echo 1 >/v/1; {STAYS}"
    one = docker.must("run", "--detach", "-v", where, "busybox", "sh", "-c", script).strip()
    try:
        wait_until("it is up", lambda: "up" in docker.must("logs", one))
        beside = ("run", "--rm", "--volumes-from", one, "busybox", "sh", "-c")
        assert docker.must(*beside, "cat /v/1; echo 2 >/v/2") == "1\n"
        assert docker.must("exec", one, "cat", "/v/2") == "2\n"
        docker.must("stop", one)
        assert docker.must(*beside, "cat /v/1 /v/2; rm /v/1") == "1\n2\n"
        assert docker.must(*beside, "ls /v") == "2\n"
    finally:
        docker.remove(one)
    docker.run("volume", "prune", "--force", "--all")
    docker.run("volume", "rm", "named")
    assert not [*docker.base.rglob("~volumes-*")]


@pytest.fixture(scope="module", params=[nightly("vfs"), "overlay"])
def engine(request: pytest.FixtureRequest) -> Iterator[Podman]:
    """podman whose directory for this session is in memory, and whose store is here alone."""
    settings = '[staging]\nhost_only = ["/tmp"]\n'
    with rootless_podman(storage=request.param, settings=settings, in_memory=True) as podman:
        yield podman


def test_podman(engine: Podman) -> None:
    mine = Path(engine.environment["XDG_RUNTIME_DIR"]) / "mine"
    mine.mkdir()
    engine.site.user.give(mine)
    mounts = ("-v", "named:/v", "-v", f"{mine}:/m")
    one = engine.must(
        *RUN, "--detach", *mounts, "busybox", "sh", "-c", f"echo 1 | tee /v/1 >/m/1; {STAYS}"
    ).strip()
    try:
        wait_until("it is up", lambda: "up" in engine.must("logs", one))
        beside = (*RUN, "--rm", *mounts, "busybox", "sh", "-c")
        assert engine.must(*beside, "cat /v/1 /m/1; echo 2 | tee /v/2 >/m/2") == "1\n1\n"
        assert (mine / "2").read_text() == "2\n"
        assert engine.must("exec", one, "cat", "/v/2", "/m/2") == "2\n2\n"
        engine.must("stop", one)
        assert engine.must(*beside, "cat /v/1 /v/2 /m/1 /m/2") == "1\n2\n1\n2\n"
    finally:
        engine.must("rm", "--force", "--time", "0", one)
        engine.must("volume", "rm", "--force", "named")


def test_a_volume_that_is_a_directory_of_the_site(docker: Docker) -> None:
    """docker mounts it where only this machine sees it, and the nodes have the directory."""
    directory = docker.base / "site"
    directory.mkdir()
    (directory / "old").write_text("1\n")
    options = ("--opt", "type=none", "--opt", "o=bind", "--opt", f"device={directory}")
    docker.must("volume", "create", *options, "bound")
    run = ("run", "--detach", "-v", "bound:/v", "busybox", "sh", "-c")
    container = docker.must(*run, f"cat /v/old; echo 2 >/v/new; {STAYS}").strip()
    try:
        wait_until("it is there at once", (directory / "new").exists)
        assert docker.must("logs", container).startswith("1\n")
    finally:
        docker.must("rm", "--force", container)
        docker.must("volume", "rm", "bound")


COMPOSE = """\
services:
  one: &service
    image: localhost/busybox
    network_mode: host
    volumes: ["data:/data"]
    command: ["sh", "-c", "echo 1 >/data/one; until [ -e /data/two ]; do :; done; echo 3 >/data/3"]
  two:
    <<: *service
    command: ["sh", "-c", "until [ -e /data/one ]; do :; done; echo 2 >/data/two"]
volumes:
  data: {}
"""


def test_volumes_of_compose(engine: Podman) -> None:
    given(engine, "compose.yaml", COMPOSE)
    with contextlib.ExitStack() as stack:
        stack.callback(compose, engine, "down", "--volumes", "--timeout", "0")
        compose(engine, "up", "--detach")
        path = engine.must("volume", "inspect", "--format", "{{.Mountpoint}}", "proj_data").strip()
        for name, text in (("one", "1\n"), ("two", "2\n"), ("3", "3\n")):
            wait_until(f"{name} is here", (Path(path) / name).exists, 30)
            assert (Path(path) / name).read_text() == text
