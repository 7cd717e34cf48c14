"""Root file systems on an overlay whose layers the nodes see: they mount the same ones."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.containerd import IMAGE, Containerd
from tests.harness.docker import Docker
from tests.harness.image import owned_by_root
from tests.harness.overlays import (
    COPIED,
    EACH,
    MOUNTED,
    STAYS,
    TASKS,
    as_with_runc,
    begin,
    build,
    changes,
    in_docker,
    own,
    said,
    shared_store,
    way,
)
from tests.harness.podman import RUN, Podman, given, podman_of
from tests.harness.squashfs import fuse_for_all
from tests.harness.users import root
from tests.harness.wait import wait_until


@pytest.fixture
def mounted() -> Iterator[Podman]:
    with shared_store() as podman:
        yield podman


def test_afterwards_all_is_as_with_another_runtime(mounted: Podman) -> None:
    build(mounted)
    as_with_runc(mounted)
    assert COPIED not in said(mounted)
    assert MOUNTED in said(mounted)


def test_nothing_is_copied_for_the_next_one(mounted: Podman) -> None:
    mounted.must(*RUN, "--rm", "busybox", "sh", "-c", "echo x >/etc/x")
    mounted.must(*RUN, "--rm", "busybox", "sh", "-c", "test ! -e /etc/x")
    assert said(mounted).count(MOUNTED) == 2
    assert COPIED not in said(mounted)


def test_a_program_that_the_container_has_made(mounted: Podman) -> None:
    script = f"cp /bin/busybox /etc/cat; mkdir /own; cp /bin/busybox /own/echo; {STAYS}"
    container = begin(mounted, script=script)
    assert mounted.must("exec", container, "/etc/cat", "/etc/passwd").startswith("root")
    assert mounted.must("exec", container, "/own/echo", "a") == "a\n"
    assert mounted.run("exec", container, "/own/none").returncode == 127


@pytest.mark.covers("podman cp, mount, unmount")
@pytest.mark.parametrize("setting", ["auto", "off"])
def test_cp_before_the_start_meanwhile_and_afterwards(setting: str) -> None:
    """Meanwhile the files are on the node only."""
    fuse_for_all()
    with shared_store(f'[staging]\nlive_files = "{setting}"\n') as podman:
        container = podman.must("create", *RUN[1:], "busybox", "sh", "-c", STAYS).strip()
        path = given(podman, "file", "given\n")
        podman.must("cp", str(path), f"{container}:/etc/before")
        podman.must("start", container)
        wait_until("it is up", lambda: podman.must("logs", container).startswith("up\n"))
        assert podman.must("exec", container, "cat", "/etc/before") == "given\n"
        out = podman.run("cp", f"{container}:/etc/passwd", "-")
        into = podman.run("cp", str(path), f"{container}:/etc/during")
        if setting == "auto":
            assert out.returncode == into.returncode == 0, (out, into)
            assert podman.must("exec", container, "cat", "/etc/during") == "given\n"
        else:
            assert out.returncode
            assert into.returncode
        podman.must("stop", "--time", "5", container)
        assert podman.must("cp", f"{container}:/etc/before", "-")
        assert (podman.run("cp", f"{container}:/etc/during", "-").returncode == 0) is (
            setting == "auto"
        )


def of_others(podman: Podman) -> None:
    """Import an image with files of user 33, some for that user alone."""
    archive = podman.site.base / "others.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(podman.site.rootfs, ".", filter=owned_by_root)
        for name, mode, folder in OF_OTHERS:
            member = tarfile.TarInfo(f"./{name}")
            member.mode, member.uid, member.gid = mode, 33, 33
            member.type = tarfile.DIRTYPE if folder else tarfile.REGTYPE
            member.size = 0 if folder else 2
            tar.addfile(member, None if folder else io.BytesIO(b"x\n"))
    podman.site.user.give(archive)
    podman.must("import", str(archive), "others")


OF_OTHERS = (
    ("etc/secret", 0o600, False),
    ("srv", 0o700, True),
    ("srv/f", 0o644, False),
    ("etc/d", 0o700, True),
    ("etc/d/d", 0o700, True),
    ("etc/d/d/f", 0o600, False),
    ("etc/open", 0o755, True),
    ("etc/open/f", 0o644, False),
)


@pytest.mark.parametrize("how", ["mount", "copy"])
def test_one_user(how: str) -> None:
    """Files of others are the only user's own, as in a copy."""
    with shared_store(f'{own(how)}id_map = "single"\n') as podman:
        of_others(podman)
        script = (
            "cat /etc/secret /srv/f /etc/d/d/f /etc/open/f; echo y >>/etc/secret; "
            "rm /srv/f /etc/open/f; mv /etc/d/d/f /etc/d/moved; echo z >/etc/open/new"
        )
        said_there = podman.must(*RUN, "--name", "one", "others", "sh", "-c", script)
        assert said_there == "x\n" * 4
        assert (MOUNTED if how == "mount" else COPIED) in said(podman)
        assert changes(podman, "one") == {
            "C /etc", "C /etc/secret", "C /srv", "D /srv/f", "C /etc/open", "D /etc/open/f",
            "C /etc/d", "C /etc/d/d", "D /etc/d/d/f", "A /etc/d/moved", "A /etc/open/new",
        }  # fmt: skip
        podman.must("start", "--attach", "one")


def launch(record: Path) -> str:
    annotations: dict[str, str] = json.loads((record / "state.json").read_text())["annotations"]
    return annotations["org.scrun.launch"]


def test_each_task_writes_for_itself(mounted: Podman) -> None:
    """What comes back is in the order of the tasks; srun --container's have one copy."""
    words = ("--detach", "--name", "one", *TASKS, "busybox", "sh", "-c")
    mounted.must(*RUN, *words, f"mkdir -p /srv; {EACH}; exec sleep 600")
    wait_until("both are up", lambda: len(mounted.must("logs", "one").split()) >= 2)
    (record,) = (mounted.site.base / "x" / "scrun").glob("[0-9a-f]*")
    by_shim = launch(record) == "shim"
    assert way(record) == ("layers" if by_shim else "copy"), said(mounted)
    mounted.must("stop", "--time", "1", "one")
    if not by_shim:
        assert "two overlays cannot write to one directory" in said(mounted)
        return
    assert sorted(mounted.must("logs", "one").split()) == ["0", "1"]
    assert {"A /srv/0", "A /srv/1", "A /etc/made", "C /etc"} <= changes(mounted, "one")
    assert COPIED not in said(mounted)


def test_several_tasks_read_the_same(mounted: Podman) -> None:
    script = "touch /etc/x 2>/dev/null || echo yes"
    options = ("--rm", "--read-only", *TASKS)
    assert mounted.must(*RUN, *options, "busybox", "sh", "-c", script) == "yes\nyes\n"
    assert MOUNTED in said(mounted)
    assert COPIED not in said(mounted)


def test_one_to_which_nothing_can_be_written(mounted: Podman) -> None:
    """Slurm mounts a directory of its own in what it launches itself, for which there is room."""
    made = "mkdir -p /run/there /var/spool/there /var/run/there"
    mounted.must(*RUN, "--name", "one", "busybox", "sh", "-c", made)
    mounted.must("commit", "one", "fuller")
    script = "touch /etc/x 2>/dev/null || ls /run"
    options = ("--rm", "--read-only", "--read-only-tmpfs=false", "fuller", "sh", "-c", script)
    assert "there" in mounted.must(*RUN, *options).split()
    assert MOUNTED in said(mounted)
    assert COPIED not in said(mounted)


def test_podman_of_root() -> None:
    with podman_of(root(), storage="overlay") as podman:
        podman.must(*RUN, "--name", "one", "busybox", "sh", "-c", "echo x >/etc/x")
        assert {"A /etc/x", "C /etc"} <= changes(podman, "one")


def test_docker() -> None:
    with Docker(storage="overlay2") as docker:
        assert MOUNTED in in_docker(docker, "layers")


def test_containerd() -> None:
    with Containerd(snapshotter="overlayfs") as containerd:
        options = (*containerd.run_options, "--detach", IMAGE, "c1")
        containerd.must(*options, "sh", "-c", f"echo x >/etc/x; {STAYS}")
        log = containerd.records / "c1" / "log"
        wait_until("it is staged", lambda: log.exists() and "root: " in log.read_text())
        assert MOUNTED in log.read_text(), log.read_text()
        containerd.must("task", "kill", "--signal", "KILL", "c1")
        wait_until("it has ended", lambda: "STOPPED" in containerd.must("task", "ls"))
        containerd.must("task", "rm", "c1")
        containerd.must("container", "rm", "c1")
