"""Shims on nodes where something is lacking, and shims that have very much to do."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.component.supervisor.shim.conftest import MakeShim
from tests.harness.nightly import often
from tests.harness.places import mounted
from tests.harness.shim import Shim
from tests.harness.wait import wait_until, wait_while

MakeDisk = Callable[[str], Path]


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """Mounts small file systems, with options."""
    with contextlib.ExitStack() as disks:

        def mount(options: str) -> Path:
            path = tmp_path / options
            disks.enter_context(mounted(path, "-o", f"mode=1777,{options}"))
            return path

        yield mount


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), open(path / "filler", "wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass


@pytest.mark.covers("security fill the disk, or the memory for files")
def test_a_full_folder(make_shim: MakeShim, make_disk: MakeDisk) -> None:
    """`create` says so. When there is room again, all is well."""
    disk = make_disk("size=64k")
    shim = make_shim(env={"TMPDIR": str(disk)})
    assert shim.hello["directory"].startswith(str(disk))
    fill(disk)
    assert "No space left on device" in shim.create("a", "true")["error"]
    (disk / "filler").unlink()
    shim.run("a", "true")
    assert shim.ended("a") == 0
    fill(disk)
    assert shim.call("delete", id="a") == {}
    assert shim.close() == (0, "")
    assert os.listdir(disk) == ["filler"]


@pytest.mark.parametrize("name", ["", "/tmp", "/var/tmp"])
def test_small_files_are_in_memory(make_shim: MakeShim, name: str) -> None:
    """Unless the job has a folder of its own, as `folder` is elsewhere."""
    shim = make_shim(env={"TMPDIR": name})
    assert shim.hello["directory"].startswith("/dev/shm/")
    shim.run("a", "true")
    assert shim.ended("a") == 0
    shim.close()
    assert not os.path.exists(shim.hello["directory"])


@pytest.mark.parametrize("options", ["size=8m", "ro", "size=1g,nr_inodes=1"])
def test_there_is_no_room_in_memory(make_shim: MakeShim, options: str) -> None:
    small = f'mount -t tmpfs -o mode=1777,{options} small /dev/shm; exec "$@"'
    before = ("unshare", "--mount", "sh", "-c", small, "sh")
    shim = make_shim(env={"TMPDIR": "/tmp"}, before=before)
    assert shim.hello["directory"].startswith("/tmp/")
    shim.run("a", "true")
    assert shim.ended("a") == 0
    shim.close()
    assert not os.path.exists(shim.hello["directory"])


@pytest.mark.parametrize("options", ["nr_inodes=1", "ro"])
def test_a_folder_that_takes_nothing(
    make_shim: MakeShim, make_disk: MakeDisk, options: str
) -> None:
    shim = make_shim(env={"TMPDIR": str(make_disk(options))})
    assert shim.hello["directory"].startswith("/dev/shm/")
    shim.run("a", "true")
    assert shim.ended("a") == 0


def test_a_folder_without_programs(make_shim: MakeShim, make_disk: MakeDisk) -> None:
    disk = make_disk("noexec,nosuid,nodev")
    shim = make_shim(env={"TMPDIR": str(disk)})
    assert shim.hello["directory"].startswith(str(disk))
    shim.run("a", "sh", "-c", "exit 3")
    assert shim.ended("a") == 3


def test_no_user_namespaces(make_shim: MakeShim) -> None:
    """The runtime says what it lacks."""
    none = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'
    within = ("unshare", "--user", "--map-root-user", "sh", "-c", none, "sh")
    shim = make_shim(before=within)
    one = [{"containerID": 0, "hostID": 0, "size": 1}]
    namespaces = [{"type": kind} for kind in ("user", "pid", "mount")]
    linux = {"namespaces": namespaces, "uidMappings": one, "gidMappings": one}
    error = shim.create("a", "true", linux=linux)
    assert "No space left on device" in error["error"] + error["log"], error
    assert shim.call("script", script="true")["status"] == 0


def test_many_creates_at_once(shim: Shim) -> None:
    names = [f"c{number}" for number in range(often(15, 100))]
    streams = {name: shim.streams("stdout") for name in names}
    for name in names:
        assert "pid" in shim.create(name, "echo", name, streams=streams[name])
    calls = [shim.ask("start", id=name) for name in names]
    assert [shim.answer(call, 60) for call in calls] == [{}] * len(names)
    for name in names:
        assert shim.ended(name, 60) == 0
        assert shim.finish(streams[name]["stdout"]) == f"{name}\n".encode()
    calls = [shim.ask("delete", id=name) for name in names]
    assert [shim.answer(call, 60) for call in calls] == [{}] * len(names)
    assert shim.close() == (0, "")


def test_many_execs(make_shim: MakeShim) -> None:
    """Twenty at a time; nothing of them is left."""
    shim = make_shim()
    shim.run("a", "sleep", "1000")
    wait_while("crun's copy", lambda: "/memfd:crun (deleted)" in held(shim))
    before = len(held(shim))
    files = sorted(os.listdir(shim.hello["directory"]))
    for number in range(often(80, 1000)):
        name = f"e{number}"
        assert "pid" in shim.exec(name, "a", "sh", "-c", f"exit {number % 200}")
        if number % 20 == 19:
            for back in range(20):
                done = number - back
                assert shim.ended(f"e{done}", 60) == done % 200
                assert shim.call("delete", id=f"e{done}") == {}
    wait_until("files", lambda: sorted(os.listdir(shim.hello["directory"])) == files)
    wait_while("crun's copy", lambda: "/memfd:crun (deleted)" in held(shim))
    assert len(held(shim)) == before


def held(shim: Shim) -> list[str]:
    """What it has open."""
    found = []
    for path in Path(f"/proc/{shim.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(path))
    return found
