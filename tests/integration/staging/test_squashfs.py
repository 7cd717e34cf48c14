"""Layers that the nodes do not see, in the store as squashfs images, which shims mount."""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.harness import cluster
from tests.harness.docker import Docker
from tests.harness.overlays import (
    CHANGES,
    COPIED,
    EACH,
    PACKED,
    STAYS,
    STORED,
    TASKS,
    as_with_runc,
    begin,
    build,
    hidden_store,
    keys,
    said,
    way,
    with_store,
)
from tests.harness.podman import RUN, Podman
from tests.harness.squashfs import fuse_for_all, served
from tests.harness.wait import wait_until, wait_while
from tests.integration.engines.test_podman_adoption import kill_supervisors

pytestmark = pytest.mark.by_shim
CHANGED = CHANGES.replace("; chown 33:44 /data/mine", "")  # there is one user
ONE_USER = '[staging]\nid_map = "single"\n'


@contextlib.contextmanager
def packed(settings: str = ONE_USER) -> Iterator[Podman]:
    """podman of a user, whose storage the nodes do not see."""
    fuse_for_all()
    before = set(served())
    with hidden_store(settings) as podman:
        yield podman
        wait_while("jobs", lambda: cluster.jobs(podman.site.user), 15)
        wait_until("nobody serves an image any more", lambda: set(served()) <= before)


def records(podman: Podman) -> set[str]:
    """What `state` says of the root file systems of the containers."""
    return {way(record) for record in (podman.site.base / "x" / "scrun").glob("[0-9a-f]*")}


@pytest.mark.parametrize("several", [False, True], ids=["one-user", "several-users"])
def test_the_first_container_has_images_made(several: bool) -> None:
    with packed("" if several else ONE_USER) as podman:
        build(podman)
        as_with_runc(podman, CHANGES if several else CHANGED)
        assert PACKED in said(podman)
        assert "the images are mounted by /usr/bin/squashfuse" in said(podman)
        made = keys(podman)
        assert len(made) == 3
        for key in made:
            folder = podman.site.base / "images" / key
            assert (folder / "rootfs.sqfs").is_file()
            assert not (folder / "rootfs").exists()
        podman.must(*RUN, "--rm", "layers", "sh", "-c", "test -e /bin/tac; test ! -e /opt/a/new")
        read_only = ("--rm", "--read-only", "--volume", "/etc/hostname:/etc/new/file:ro")
        script = "touch /etc/x || cat /data/mine /data/old/a && ls /data/old"
        assert podman.must(*RUN, *read_only, "layers", "sh", "-c", script) == "mine\na\na\nc\n"
        if several:
            user = ("--user", "33:44", "layers", "sh", "-c", "id -u; cat /data/mine || id -g")
            assert podman.must(*RUN, "--rm", *user) == "33\n44\n"
        assert keys(podman) == made
        assert COPIED not in said(podman)
        assert STORED not in said(podman)


def test_what_serves_an_image_is_killed() -> None:
    with packed() as podman:
        before = set(served())
        container = begin(podman)
        assert records(podman) == {"squashfs"}
        servers = set(served()) - before
        assert servers
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        assert podman.must("wait", container) == "125\n"
        assert "its root file system went away" in podman.run("logs", container).stderr
        podman.must("rm", container)


def test_the_store_is_removed_under_a_container() -> None:
    with packed() as podman:
        container = begin(podman)
        subprocess.run(["rm", "-rf", podman.site.base / "images"], check=True)
        assert podman.must("exec", container, "cat", "/etc/passwd").startswith("root")
        podman.must("rm", "--force", "--time", "0", container)
        podman.must(*RUN, "--rm", "busybox", "true")
        assert len(keys(podman)) == 1


def test_copies_are_directories() -> None:
    with packed('format = "files"\n' + ONE_USER) as podman:
        podman.must(*RUN, "--rm", "busybox", "true")
        assert STORED in said(podman)
        assert "squashfs" not in said(podman)


def test_each_task_mounts_them() -> None:
    """If what serves one of them is killed, the whole container ends."""
    with packed("") as podman:
        before = set(served())
        words = ("--detach", "--name", "one", *TASKS, "busybox", "sh", "-c")
        podman.must(*RUN, *words, f"mkdir -p /srv; {EACH}; exec sleep 600")
        wait_until("both are up", lambda: len(podman.must("logs", "one").split()) >= 2)
        assert records(podman) == {"squashfs"}
        servers = set(served()) - before
        assert len(servers) == 2
        assert sorted(podman.must("logs", "one").split()) == ["0", "1"]
        os.kill(servers.pop(), signal.SIGKILL)
        assert podman.must("wait", "one") == "125\n"
        assert "its root file system went away" in podman.run("logs", "one").stderr
        podman.must("rm", "one")


def test_docker() -> None:
    """Root's are mounted by the kernel."""
    with Docker(storage="overlay2", hidden=True) as docker:
        with_store(docker, "squashfs")
        for _ in range(2):
            container = docker.must("run", "--detach", "busybox", "sh", "-c", STAYS).strip()
            wait_until("it is up", lambda: docker.must("logs", container))  # noqa: B023
            log = (docker.records / container / "log").read_text()
            assert PACKED in log, log
            assert "the images are mounted by squashfs" in log
            assert way(docker.records / container) == "squashfs"
            docker.must("exec", container, "sh", "-c", "echo x >/etc/x; rm /bin/tac")
            docker.must("stop", container)
            lines = set(docker.must("diff", container).splitlines())
            assert {"A /etc/x", "D /bin/tac"} <= lines
            docker.must("rm", container)
        [image] = (docker.base / "images").glob("layer-*/rootfs.sqfs")
        loops = subprocess.run(["losetup", "--json"], capture_output=True, text=True, check=True)
        assert str(image) not in loops.stdout


def test_several_at_once() -> None:
    """An image is made once, and none fails."""
    with packed() as podman, concurrent.futures.ThreadPoolExecutor(6) as pool:
        words = (*RUN, "--rm", "busybox", "cat", "/etc/passwd")
        outputs = list(pool.map(lambda _: podman.must(*words), range(6)))
        assert all(output.startswith("root") for output in outputs)
        assert len(keys(podman)) == 1
        assert said(podman).count(PACKED) == 6


def test_its_supervisor_is_killed() -> None:
    """Another one adopts the container; its images go with it."""
    with packed() as podman:
        before = set(served())
        container = begin(podman)
        kill_supervisors(podman)
        assert podman.must("exec", container, "cat", "/etc/passwd").startswith("root")
        assert set(served()) - before
        podman.must("rm", "--force", "--time", "0", container)
        wait_until("nobody serves an image any more", lambda: set(served()) <= before)
