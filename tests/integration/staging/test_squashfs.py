"""Layers that the nodes do not see, in the store as squashfs images, which shims mount.

Where the nodes do not see the store, either, images are sent to them, and stay there.
"""

import concurrent.futures
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cluster
from tests.harness.docker import Docker
from tests.harness.nightly import nightly
from tests.harness.overlays import (
    CHANGES,
    COPIED,
    EACH,
    PACKED,
    TASKS,
    as_with_runc,
    begin,
    build,
    hidden_store,
    in_docker,
    keys,
    said,
    way,
    with_store,
)
from tests.harness.podman import RUN, Podman
from tests.harness.squashfs import fuse_for_all, served
from tests.harness.users import root
from tests.harness.wait import wait_until, wait_while
from tests.integration.engines.test_podman_adoption import kill_supervisors

pytestmark = pytest.mark.by_shim
CHANGED = CHANGES.replace("; chown 33:44 /data/mine", "")  # there is one user
ONE_USER = '[staging]\nid_map = "single"\n'


SENT = "after they were sent to the node"
SEEN = pytest.mark.parametrize("sent", [nightly(False), True], ids=["seen", "sent"])


def place(uid: int) -> Path:
    """Where the nodes, which all have this machine's /tmp, keep the images of a user."""
    return Path(f"/tmp/scrun-images-{uid}")


def there(podman: Podman) -> dict[str, int]:
    """The images on the nodes, and their inodes."""
    return {path.name: path.stat().st_ino for path in place(podman.site.user.uid).iterdir()}


@contextlib.contextmanager
def packed(settings: str = ONE_USER, *, sent: bool = False) -> Iterator[Podman]:
    """podman of a user, whose storage the nodes do not see; nor the store if images are `sent`."""
    fuse_for_all()
    before = set(served())
    with hidden_store(settings, images_in="s/images" if sent else "images") as podman:
        try:
            yield podman
            wait_while("jobs", lambda: cluster.jobs(podman.site.user), 15)
            wait_until("nobody serves an image any more", lambda: set(served()) <= before)
        finally:
            if sent:
                shutil.rmtree(place(podman.site.user.uid), ignore_errors=True)


def records(podman: Podman) -> set[str]:
    """What `state` says of the root file systems of the containers."""
    return {way(record) for record in (podman.site.base / "x" / "scrun").glob("[0-9a-f]*")}


@pytest.mark.parametrize("several", [nightly(False), True], ids=["one-user", "several-users"])
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


@SEEN
def test_docker(sent: bool) -> None:
    """Root's are mounted by the kernel."""
    with Docker(storage="overlay2", hidden=True) as docker:
        with_store(docker, images_in="d/images" if sent else "images")
        for _ in range(2):
            log = in_docker(docker, "squashfs")
            assert PACKED in log, log
            assert "the images are mounted by squashfs" in log
            assert (SENT in log) is sent
        if sent:
            shutil.rmtree(place(root().uid))
            return
        [image] = (docker.base / "images").glob("layer-*/rootfs.sqfs")
        loops = subprocess.run(["losetup", "--json"], capture_output=True, text=True, check=True)
        assert str(image) not in loops.stdout


@SEEN
def test_several_at_once(sent: bool) -> None:
    """An image is made once, and comes once, and none fails."""
    with packed(sent=sent) as podman, concurrent.futures.ThreadPoolExecutor(6) as pool:
        words = (*RUN, "--rm", "busybox", "cat", "/etc/passwd")
        outputs = list(pool.map(lambda _: podman.must(*words), range(6)))
        assert all(output.startswith("root") for output in outputs)
        assert len(there(podman) if sent else keys(podman)) == 1
        assert said(podman).count(PACKED) == 6
        assert said(podman).count(SENT) == (6 if sent else 0)
        assert COPIED not in said(podman)


@SEEN
def test_its_supervisor_is_killed(sent: bool) -> None:
    """Another one adopts the container; its images go with it."""
    with packed(sent=sent) as podman:
        before = set(served())
        container = begin(podman)
        kill_supervisors(podman)
        assert podman.must("exec", container, "cat", "/etc/passwd").startswith("root")
        assert set(served()) - before
        podman.must("rm", "--force", "--time", "0", container)
        wait_until("nobody serves an image any more", lambda: set(served()) <= before)
        assert not sent or len(there(podman)) == 1


# Images that are sent


def test_images_are_sent_once() -> None:
    with packed(sent=True) as podman:
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


def test_without_them_the_root_file_system_is_copied() -> None:
    with packed(f"node_size = 1\n{ONE_USER}", sent=True) as podman:
        podman.must(*RUN, "--rm", "busybox", "true")
        assert COPIED in said(podman)
        assert "no room for" in said(podman)


def test_a_container_with_several_users() -> None:
    with packed("", sent=True) as podman:
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


@pytest.mark.parametrize(
    ("tasks", "own"),
    [(2, True), (4, False), nightly(2, False), nightly(4, True)],
    ids=["2-own-disks", "4-one-disk", "2-one-disk", "4-own-disks"],
)
def test_a_container_of_several_tasks(tasks: int, own: bool) -> None:
    """Each disk has the image come once, and the next container has it there."""
    with a_disk(own=own) as (disk, settings), packed(ONE_USER + settings, sent=True) as podman:
        words = ("--env", "SCRUN_JOB_NUM_NODES=2", "--env", f"SCRUN_NTASKS={tasks}")
        script = "echo x >>/etc/passwd; tail -n 1 /etc/passwd"
        inodes: set[int] = set()
        for _ in range(2):
            output = podman.must(*RUN, "--rm", *words, "busybox", "sh", "-c", script)
            assert output == "x\n" * tasks
            found = list(disk.glob("*/scrun-images-*/*" if own else "scrun-images-*/*"))
            assert len(found) == (2 if own else 1)
            assert not any(path.name.endswith(".part") for path in found)
            inodes |= {path.stat().st_ino for path in found}
        assert len(inodes) == len(found)
        assert said(podman).count(SENT) == 2
        assert COPIED not in said(podman)


def test_another_version_in_the_store() -> None:
    """An image that was removed there and made again is another one for the nodes."""
    with packed(sent=True) as podman:
        podman.must(*RUN, "--rm", "busybox", "true")
        first = there(podman)
        podman.must("unshare", "rm", "-rf", f"{podman.site.base}/s/images")
        podman.must(*RUN, "--rm", "busybox", "true")
        assert len(there(podman)) == 2
        assert set(there(podman)) > set(first)
