"""A store of images that the nodes do not see: images are sent to the nodes, which keep them."""

import concurrent.futures
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cluster
from tests.harness.docker import Docker
from tests.harness.overlays import (
    COPIED,
    PACKED,
    STAYS,
    as_with_runc,
    begin,
    build,
    hidden_store,
    said,
    way,
)
from tests.harness.podman import RUN, Podman
from tests.harness.squashfs import fuse_for_all, served
from tests.harness.users import root
from tests.harness.wait import wait_until, wait_while
from tests.integration.engines.test_podman_adoption import kill_supervisors
from tests.integration.staging.test_squashfs import CHANGED, ONE_USER

pytestmark = pytest.mark.by_shim
SENT = "after they were sent to the node"


def place(uid: int) -> Path:
    """Where the nodes, which all have this machine's /tmp, keep the images of a user."""
    return Path(f"/tmp/scrun-images-{uid}")


@contextlib.contextmanager
def unseen(settings: str = ONE_USER) -> Iterator[Podman]:
    """podman of a user; the nodes see neither its storage nor the store of images."""
    fuse_for_all()
    before = set(served())
    with hidden_store(settings, images_in="s/images") as podman:
        try:
            yield podman
            wait_while("jobs", lambda: cluster.jobs(podman.site.user), 15)
            wait_until("nobody serves an image any more", lambda: set(served()) <= before)
        finally:
            shutil.rmtree(place(podman.site.user.uid), ignore_errors=True)


def there(podman: Podman) -> dict[str, int]:
    """The images on the nodes, and their inodes."""
    return {path.name: path.stat().st_ino for path in place(podman.site.user.uid).iterdir()}


def test_images_are_sent_once() -> None:
    with unseen() as podman:
        build(podman)
        as_with_runc(podman, CHANGED)
        assert PACKED in said(podman)
        assert SENT in said(podman)
        assert COPIED not in said(podman)
        sent = there(podman)
        assert len(sent) == 3
        podman.must(*RUN, "--rm", "layers", "sh", "-c", "test -e /bin/tac; test ! -e /opt/a/new")
        podman.must("start", "--attach", "ours")
        podman.must("commit", "ours", "more")
        assert there(podman) == sent
        podman.must(*RUN, "--rm", "more", "sh", "-c", "test ! -e /bin/tac; test -e /opt/a/new")
        assert len(there(podman)) == 4
        assert COPIED not in said(podman)


def test_several_at_once() -> None:
    """An image comes once, and none fails."""
    with unseen() as podman, concurrent.futures.ThreadPoolExecutor(6) as pool:
        words = (*RUN, "--rm", "busybox", "cat", "/etc/passwd")
        outputs = list(pool.map(lambda _: podman.must(*words), range(6)))
        assert all(output.startswith("root") for output in outputs)
        assert len(there(podman)) == 1
        assert said(podman).count(SENT) == 6
        assert COPIED not in said(podman)


def test_its_supervisor_is_killed() -> None:
    with unseen() as podman:
        container = begin(podman)
        kill_supervisors(podman)
        assert podman.must("exec", container, "cat", "/etc/passwd").startswith("root")
        podman.must("rm", "--force", "--time", "0", container)
        assert len(there(podman)) == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (f'format = "files"\n{ONE_USER}', "nor is the store of images"),
        (f"node_size = 1\n{ONE_USER}", "no room for"),
    ],
)
def test_without_them_the_root_file_system_is_copied(settings: str, why: str) -> None:
    with unseen(settings) as podman:
        podman.must(*RUN, "--rm", "busybox", "true")
        assert COPIED in said(podman)
        assert why in said(podman)


def test_a_container_with_several_users() -> None:
    with unseen("") as podman:
        script = "chown 33:44 /etc/passwd && stat -c %u:%g /etc/passwd"
        assert podman.must(*RUN, "--rm", "busybox", "sh", "-c", script) == "33:44\n"
        assert COPIED not in said(podman)
        assert SENT in said(podman)


@contextlib.contextmanager
def a_disk(*, own: bool) -> Iterator[tuple[Path, str]]:
    """A directory that tasks use, or each node one below it; with the settings for that."""
    with tempfile.TemporaryDirectory(prefix="disk-") as name:
        disk, prolog = Path(name, "disk"), Path(name, "prolog")
        place = f"{disk}/$SLURMD_NODENAME" if own else str(disk)
        prolog.write_text(f"#!/bin/sh\nmkdir -p {place}\necho export TMPDIR={place}\n")
        disk.mkdir()
        for path, mode in ((Path(name), 0o755), (prolog, 0o755), (disk, 0o1777)):
            path.chmod(mode)
        yield disk, f'[slurm.defaults]\ntask_prolog = "{prolog}"\n'


@pytest.mark.parametrize("own", [True, False], ids=["own-disks", "one-disk"])
@pytest.mark.parametrize("tasks", [2, 4])
def test_a_container_of_several_tasks(tasks: int, own: bool) -> None:
    """Each disk has the image come once, and the next container has it there."""
    with a_disk(own=own) as (disk, settings), unseen(ONE_USER + settings) as podman:
        words = ("--env", "SCRUN_JOB_NUM_NODES=2", "--env", f"SCRUN_NTASKS={tasks}")
        script = "echo x >>/etc/passwd; tail -n 1 /etc/passwd"
        inodes: set[int] = set()
        for _ in range(2):
            output = podman.must(*RUN, "--rm", *words, "busybox", "sh", "-c", script)
            assert output == "x\n" * tasks
            there = list(disk.glob("*/scrun-images-*/*" if own else "scrun-images-*/*"))
            assert len(there) == (2 if own else 1)
            assert not any(path.name.endswith(".part") for path in there)
            inodes |= {path.stat().st_ino for path in there}
        assert len(inodes) == len(there)
        assert said(podman).count(SENT) == 2
        assert COPIED not in said(podman)


def test_another_version_in_the_store() -> None:
    """An image that was removed there and made again is another one for the nodes."""
    with unseen() as podman:
        podman.must(*RUN, "--rm", "busybox", "true")
        first = there(podman)
        podman.must("unshare", "rm", "-rf", f"{podman.site.base}/s/images")
        podman.must(*RUN, "--rm", "busybox", "true")
        assert len(there(podman)) == 2
        assert set(there(podman)) > set(first)


def test_docker() -> None:
    """Root's are mounted by the kernel."""
    with Docker(storage="overlay2", hidden=True) as docker:
        settings = docker.base / "scrun.toml"
        more = f'[staging]\nhost_only = ["{docker.base}/d"]\n'
        settings.write_text(
            f'{settings.read_text()}\n{more}[images]\nstore = "{docker.base}/d/i"\n'
        )
        container = docker.must("run", "--detach", "busybox", "sh", "-c", STAYS).strip()
        wait_until("it is up", lambda: docker.must("logs", container))
        log = (docker.records / container / "log").read_text()
        assert SENT in log, log
        assert way(docker.records / container) == "squashfs"
        docker.must("exec", container, "sh", "-c", "echo x >/etc/x; rm /bin/tac")
        docker.must("stop", container)
        assert {"A /etc/x", "D /bin/tac"} <= set(docker.must("diff", container).splitlines())
        docker.must("rm", container)
        shutil.rmtree(place(root().uid))
