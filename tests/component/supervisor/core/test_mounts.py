"""Threads and children of a container see its caller's mounts; nothing else does."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv, output_of
from scrun.supervisor.core.mounts import OURS, MountNamespace
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.staging.survey import mount_of, read_mounts
from tests.harness.users import ordinary

_MOUNT = 'mount -t tmpfs tmpfs "$1" && touch "$1/theirs" && echo up && read -r _'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory, which is another one in `mounts`."""
    (tmp_path / "ours").touch()
    return tmp_path


@pytest.fixture
def mounts(place: Path) -> Iterator[MountNamespace]:
    command = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"up\n"
        found = MountNamespace(os.open(f"/proc/{shell.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
        shell.communicate(b"\n")
    yield found
    found.close()


async def test_a_container_sees_its_own_mounts(place: Path, mounts: MountNamespace) -> None:
    """So do tasks that are started for it, and its children; its thread then serves others."""
    command, child_env = ["/bin/ls", str(place)], ChildEnv({})
    found: list[list[str]] = []

    async def look() -> None:
        found.append(await in_thread(os.listdir, place))

    assert await in_thread(mounts.may_be_entered)
    for _ in range(3):
        with mounts.seen():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(look)
            assert await output_of(command, child_env) == "theirs\n"
            assert os.listdir(place) == ["ours"]
            with OURS.seen():
                assert await in_thread(os.listdir, place) == ["ours"]
        assert await in_thread(os.listdir, place) == ["ours"]
        assert await output_of(command, child_env) == "ours\n"
    assert found == [["theirs"]] * 3


async def test_what_is_mounted_is_known(place: Path, mounts: MountNamespace) -> None:
    with mounts.seen():
        assert mount_of(str(place), await in_thread(read_mounts)).kind == "tmpfs"
    assert mount_of(str(place), await in_thread(read_mounts)).point != str(place)


async def test_an_error_leaves_the_thread_in_our_mounts(
    place: Path, mounts: MountNamespace
) -> None:
    with mounts.seen(), pytest.raises(FileNotFoundError):
        await in_thread(os.listdir, place / "none")
    assert await in_thread(os.listdir, place) == ["ours"]


async def test_closed_mounts_are_not_taken_for_ours(place: Path, mounts: MountNamespace) -> None:
    mounts.close()
    with mounts.seen(), pytest.raises(OSError, match="Bad file descriptor"):
        await in_thread(os.listdir, place)


def test_without_a_capability_none_may_be_entered(mounts: MountNamespace) -> None:
    """In a process of its own, as another user."""
    assert OURS.may_be_entered()
    pid = os.fork()
    if pid == 0:
        os.setresuid(*(3 * [ordinary().uid]))
        os._exit(mounts.may_be_entered())
    assert os.waitpid(pid, 0)[1] == 0
