"""A container's files, shown in the namespaces of a real anchor."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.supervisor.containers.shown_files import show
from scrun.supervisor.contracts.staged import ShownMount, View
from tests import CHECKOUT
from tests.harness.wait import wait_until

LEAVE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from scrun.anchor import shell as anchor
left = anchor.AnchorProcess("c1", int(sys.argv[2]), None, None)
left.settle()
print(left.pid)
"""


@pytest.fixture
def anchor() -> Iterator[int]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = [str(CHECKOUT), str(theirs.fileno())]
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", LEAVE, *arguments],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            check=True,
        )
        yield int(done.stdout)
    wait_until("its end", lambda: not os.path.exists(f"/proc/{int(done.stdout)}/root/proc/1"))


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    path = tmp_path / "bundle" / "rootfs"
    path.mkdir(parents=True)
    (path / "file").write_text("the container's\n")
    return path


def shown(
    pid: int, rootfs: Path, *places: ShownMount, read_only: bool = False, elsewhere: bool = True
) -> tuple[Path, str]:
    """Show a container's files; return where they are, and what went wrong."""
    view = View(str(rootfs), str(rootfs.parent), elsewhere, read_only, places)
    return Path(f"/proc/{pid}/root"), show(pid, view, lambda: True)


def test_files(anchor: int, rootfs: Path) -> None:
    place, error = shown(anchor, rootfs)
    assert error == ""
    assert (place / "file").read_text() == "the container's\n"
    (place / "new").write_text("from outside\n")
    assert (rootfs / "new").read_text() == "from outside\n"
    assert [name for name in os.listdir(place / "proc") if name.isdigit()] == ["1"]
    assert sorted(os.listdir(f"/proc/{anchor}/cwd")) == ["file", "new", "proc"]
    mounts = Path(f"/proc/{anchor}/mountinfo").read_text().splitlines()
    assert [line.split()[4] for line in mounts] == ["/", "/proc"]


def test_read_only(anchor: int, rootfs: Path) -> None:
    place, error = shown(anchor, rootfs, read_only=True)
    assert error == ""
    with pytest.raises(OSError, match="Read-only"):
        (place / "new").write_text("")
    (rootfs / "file").write_text("changed\n")
    assert (place / "file").read_text() == "changed\n"


def test_mounts(anchor: int, rootfs: Path, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "one").write_text("one\n")
    places = [
        ShownMount("/a/volume", str(tmp_path / "volume")),
        ShownMount("/a/volume/file", str(tmp_path / "one"), read_only=True),
        ShownMount("/scratch"),
        ShownMount("/file"),
        ShownMount("/hosts", "/etc/hosts", own=True),
        ShownMount("/missing", str(tmp_path / "missing")),
    ]
    place, error = shown(anchor, rootfs, *places)
    assert error == ""
    (place / "a/volume/new").write_text("new\n")
    assert (tmp_path / "volume" / "new").read_text() == "new\n"
    assert (place / "a/volume/file").read_text() == "one\n"
    with pytest.raises(OSError, match="Read-only"):
        (place / "a/volume/file").write_text("")
    assert (place / "scratch").is_dir()
    with pytest.raises(ProcessLookupError):
        os.listdir(place / "scratch")
    with pytest.raises(ProcessLookupError):
        (place / "scratch" / "new").write_text("")
    assert not os.listdir(rootfs / "scratch")
    # the runtime on the node mounts a file there, so it has to be one
    assert (rootfs / "hosts").read_bytes() == b""
    with pytest.raises(ProcessLookupError):
        (place / "hosts").read_text()
    assert not (rootfs / "missing").exists()
    with pytest.raises(ProcessLookupError):
        (place / "file").read_text()
    assert (rootfs / "file").read_text() == "the container's\n"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_source_on_another_file_system(anchor: int, rootfs: Path, *, elsewhere: bool) -> None:
    """The nodes have the one that the root file system is on; of others nobody knows."""
    place, error = shown(anchor, rootfs, ShownMount("/x", "/sys/kernel"), elsewhere=elsewhere)
    assert error == ""
    if elsewhere:
        with pytest.raises(ProcessLookupError):
            os.listdir(place / "x")
    else:
        assert os.listdir(place / "x") == os.listdir("/sys/kernel")


@pytest.mark.parametrize("link", ["/", "../../..", "{outside}"])
def test_links_in_a_root_file_system_lead_nowhere(
    anchor: int, rootfs: Path, tmp_path: Path, link: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs").write_text("the host's\n")
    (tmp_path / "volume").mkdir()
    (rootfs / "data").symlink_to(link.format(outside=outside))
    if "{" in link:
        (rootfs / str(outside)[1:]).mkdir(parents=True)
    shown(
        anchor,
        rootfs,
        ShownMount("/data/made", str(tmp_path / "volume")),
        ShownMount("/data/gone"),
    )
    assert os.listdir(outside) == ["theirs"]
    assert not os.path.exists("/made")
    for name in ("root", "cwd"):
        assert not os.path.exists(f"/proc/{anchor}/{name}/etc/passwd")
    inside = rootfs / str(outside)[1:] if "{" in link else rootfs
    assert {"made", "gone"} <= {*os.listdir(inside)}


def test_a_root_file_system_that_is_gone(anchor: int, rootfs: Path) -> None:
    place, error = shown(anchor, rootfs / "no")
    assert error == f"No such file or directory: {rootfs}/no"
    assert os.listdir(place) == ["proc"]


def test_only_into_the_empty_root_of_an_anchor(rootfs: Path) -> None:
    """A number that belongs to another process by now: whose namespace it has stays as it is."""
    script = ("unshare", "--mount", "--propagation", "private", "sleep", "600")
    with subprocess.Popen(script) as other:
        mine = os.readlink("/proc/self/ns/mnt")
        wait_until("it", lambda: os.readlink(f"/proc/{other.pid}/ns/mnt") != mine)
        before = Path(f"/proc/{other.pid}/mountinfo").read_text()
        _, error = shown(other.pid, rootfs)
        assert error == "the namespace is not that of an anchor"
        assert Path(f"/proc/{other.pid}/mountinfo").read_text() == before
        other.send_signal(signal.SIGKILL)


def test_once_only(anchor: int, rootfs: Path) -> None:
    place, _ = shown(anchor, rootfs)
    _, error = shown(anchor, rootfs)
    assert error == "the namespace is not that of an anchor"
    assert (place / "file").read_text() == "the container's\n"


def test_a_dead_anchor_s_pid_is_left_alone(anchor: int, rootfs: Path) -> None:
    view = View(str(rootfs), str(rootfs.parent), elsewhere=True)
    assert show(anchor, view, lambda: False) == ""
    assert os.listdir(f"/proc/{anchor}/root") == ["proc"]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_it_stays_in_the_supervisor(anchor: int, rootfs: Path, *, fails: bool) -> None:
    """Its other threads see what they saw, and no descriptor is left."""

    def mine() -> tuple[str, str, list[str], str]:
        mounts = Path("/proc/self/mountinfo").read_text()
        return mounts, os.readlink("/proc/self/ns/mnt"), os.listdir("/proc/self/fd"), os.getcwd()

    before = mine()
    place = ShownMount("/volume", "/etc" if fails else str(rootfs), read_only=True)
    (rootfs / "volume").write_text("no directory") if fails else None
    _, error = shown(anchor, rootfs, place, elsewhere=False)
    assert bool(error) is fails
    assert mine() == before


def test_without_a_thread_nothing_is_shown(
    anchor: int, rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a user's last process; the container goes on."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert shown(anchor, rootfs)[1] == "can't start new thread"
    assert os.listdir(f"/proc/{anchor}/root") == ["proc"]
