"""What a container has changed in a copy of its root, or an overlay, in the original again."""

import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scrun.core.errors import StagingError
from scrun.supervisor.staging import builtin
from scrun.supervisor.staging.bring_back import bring_back, bring_difference_back
from scrun.supervisor.staging.layers import Whiteouts
from scrun.supervisor.staging.stage_out import keep_changes
from tests.harness.places import mounted


class Two:
    """An original and its copy, made as staging makes it."""

    def __init__(self, base: Path) -> None:
        self.original, self.copied = base / "original", base / "copied"
        for folder in ("etc", "bin", "empty"):
            (self.original / folder).mkdir(parents=True)
        for name in ("etc/passwd", "etc/hosts", "bin/sh"):
            (self.original / name).write_text(name)
        (self.original / "bin/sh").chmod(0o755)
        (self.original / "bin/ash").symlink_to("sh")
        os.mkfifo(self.original / "pipe", 0o600)
        subprocess.run(["cp", "-a", f"{self.original}/.", self.copied], check=True)
        time.sleep(0.02)  # the grain of the kernel's file times is some milliseconds
        (base / "mark").touch()
        self.since = (base / "mark").lstat().st_ctime_ns
        time.sleep(0.02)

    def bring_back(self, *, owners: bool = True, go_on: Callable[[], bool] = lambda: True) -> None:
        bring_back(str(self.copied), str(self.original), self.since, owners=owners, go_on=go_on)

    def same(self) -> None:
        """Hold that both are alike, but for the times of directories."""
        assert listing(self.original) == listing(self.copied)


def listing(root: Path) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content: object = path.readlink() if path.is_symlink() else None
        if stat.S_ISREG(status.st_mode):
            content = (path.read_bytes(), status.st_mtime_ns)
        found.append((path.relative_to(root), status.st_mode, status.st_uid, content))
    return found


@pytest.fixture
def two(tmp_path: Path, no_descriptor_stays: None) -> Two:
    return Two(tmp_path)


def test_nothing_has_changed(two: Two) -> None:
    before = {path: path.lstat() for path in two.original.rglob("*")}
    two.bring_back()
    assert {path: path.lstat() for path in two.original.rglob("*")} == before


CHANGES = {
    "new file": "echo new >new",
    "large file": "head -c 3000000 /dev/urandom >new",
    "new directories": "mkdir -p a/b/c",
    "other content": "echo other >etc/passwd",
    "other mode": "chmod 4750 etc/passwd",
    "other owner": "chown 33:33 etc/passwd",
    "file removed": "rm etc/passwd",
    "directory removed": "rm -r etc",
    "link elsewhere": "ln -sf /bin/other bin/ash",
    "directory instead of file": "rm etc/passwd; mkdir -p etc/passwd/x",
    "file instead of directory": "rmdir empty; echo x >empty",
    "link instead of directory": "rm -r etc; ln -s /etc etc",
    "mode of a directory": "chmod 1777 empty",
    "FIFO": "mkfifo -m 642 fifo; chown 33:33 fifo",
    "mode of a FIFO": "chmod 666 pipe",
    "owner of a link": "chown -h 33:33 bin/ash",
    "renamed": "mv etc/passwd bin/passwd",
    "two names": "ln etc/passwd etc/another",
}


@pytest.mark.parametrize("change", CHANGES)
def test_change(two: Two, change: str) -> None:
    subprocess.run(["sh", "-ec", CHANGES[change]], cwd=two.copied, check=True)
    two.bring_back()
    two.same()


def test_a_change_that_hides_itself(two: Two) -> None:
    """Of the same size, and with the time set back: the time of the change itself tells."""
    path = two.copied / "etc/passwd"
    status = path.lstat()
    path.write_text("ETC/PASSWD")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    two.bring_back()
    assert (two.original / "etc/passwd").read_text() == "ETC/PASSWD"


@pytest.mark.covers("security the root file system")
def test_no_link_of_the_copy_is_followed(two: Two, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (two.copied / "leak").symlink_to(outside / "secret")
    (two.copied / "folder").symlink_to(outside)
    two.bring_back()
    assert (two.original / "leak").is_symlink()
    assert (two.original / "folder").is_symlink()


@pytest.mark.covers("security the root file system")
def test_no_link_of_the_original_is_followed(two: Two, tmp_path: Path) -> None:
    """Nor where the copy has a directory or a file in its place."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (two.original / "bin/ash").unlink()
    (two.original / "bin/ash").symlink_to(outside / "made")
    (two.copied / "bin/ash").unlink()
    (two.copied / "bin/ash").write_text("a file now")
    (two.original / "empty").rmdir()
    (two.original / "empty").symlink_to(outside)
    (two.copied / "empty/x").write_text("x")
    two.bring_back()
    assert list(outside.iterdir()) == []
    two.same()


def test_devices_and_sockets_are_left_out(two: Two) -> None:
    os.mknod(two.copied / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(two.copied / "socket"))
    two.bring_back()
    assert not (two.original / "null").exists()
    assert not (two.original / "socket").exists()


def test_without_owners_a_file_keeps_its_own(two: Two) -> None:
    """The copy of an ordinary user belongs to that user as a whole."""
    os.chown(two.original / "etc/passwd", 33, 33)
    (two.copied / "etc/passwd").write_text("other")
    (two.copied / "new").write_text("new")
    os.chown(two.copied / "new", 20001, 20001)
    two.bring_back(owners=False)
    assert (two.original / "etc/passwd").stat().st_uid == 33
    assert (two.original / "etc/passwd").read_text() == "other"
    assert (two.original / "new").stat().st_uid == os.geteuid()


def test_a_mount_in_the_original_is_left_alone(two: Two) -> None:
    mount = two.original / "empty"
    with mounted(mount):
        (mount / "there").write_text("there")
        (two.copied / "empty").rmdir()
        two.bring_back()
        assert (mount / "there").read_text() == "there"


def test_no_time_is_left(two: Two) -> None:
    (two.copied / "new").write_text("new")
    with pytest.raises(StagingError, match="out of time"):
        two.bring_back(go_on=lambda: False)
    assert not (two.original / "new").exists()


def test_the_original_is_gone(two: Two) -> None:
    shutil.rmtree(two.original)
    with pytest.raises(StagingError, match="original"):
        two.bring_back()


def test_what_was_left_by_one_that_was_killed(two: Two) -> None:
    (two.original / f".scrun-{os.getpid()}").mkdir()
    (two.copied / "new").write_text("new")
    two.bring_back()
    two.same()


def test_names_that_are_no_names_elsewhere(two: Two) -> None:
    """A name is a name, whatever it would be on a command line or in a path."""
    for name in ("-rf", "a\nb", "...", "%s", "\x1b[2J", "*", "~", os.fsdecode(b"\xff"), "n" * 255):
        (two.copied / "empty" / name).write_bytes(os.fsencode(name))
        (two.copied / "bin" / name).mkdir()
        (two.copied / "etc" / name).symlink_to("/etc/passwd")
    two.bring_back()
    two.same()


def test_nested_without_an_end(two: Two, tmp_path: Path) -> None:
    """It is told, and neither the stack nor the descriptors run out."""
    here = os.open(two.copied / "empty", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        with pytest.raises(StagingError, match="not all of the container's changes are in"):
            two.bring_back()
    finally:
        for place in (two.copied, two.original):  # pytest could not remove it either
            subprocess.run(["rm", "-rf", place / "empty"], check=True)


def test_a_deep_tree_takes_few_descriptors(two: Two) -> None:
    (two.copied / "empty" / Path(*["d"] * 300) / "e").mkdir(parents=True)
    (two.copied / "empty" / Path(*["d"] * 300) / "file").write_text("x")
    (two.copied / "empty" / "d" / "beside").mkdir(mode=0o500)
    counts: list[int] = []

    def go_on() -> bool:
        counts.append(len(os.listdir("/proc/self/fd")))
        return True

    before = len(os.listdir("/proc/self/fd"))
    two.bring_back(go_on=go_on)
    two.same()
    assert max(counts) - before <= 8


def test_what_a_container_may_not_give_itself(two: Two) -> None:
    """A file of another owner keeps that, and is not made a program that runs as them."""
    os.chown(two.original / "bin/sh", 33, 33)
    (two.copied / "bin/sh").write_text("mine")
    (two.copied / "bin/sh").chmod(0o6755)
    two.bring_back(owners=False)
    status = (two.original / "bin/sh").stat()
    assert status.st_uid == 33
    assert stat.S_IMODE(status.st_mode) == 0o755


def names_of_files(root: Path) -> set[frozenset[str]]:
    """Which names are those of one file."""
    found: dict[int, set[str]] = {}
    for path in root.rglob("*"):
        if not path.is_dir():
            found.setdefault(path.lstat().st_ino, set()).add(str(path.relative_to(root)))
    return {frozenset(names) for names in found.values()}


def test_names_of_one_file_stay_that(two: Two) -> None:
    new, deep = two.copied / "etc/new", two.copied / "a/b/c"
    deep.mkdir(parents=True)
    new.write_text("new")
    for link in (deep / "link", two.copied / "bin/link", two.copied / "etc/hosts"):
        link.unlink(missing_ok=True)
        link.hardlink_to(new)
    (two.copied / "empty/passwd").hardlink_to(two.copied / "etc/passwd")
    two.bring_back()
    two.same()
    assert names_of_files(two.original) == names_of_files(two.copied)
    many = frozenset({"etc/new", "a/b/c/link", "bin/link", "etc/hosts"})
    assert many in names_of_files(two.original)
    new.write_text("more")
    two.bring_back()
    two.same()
    assert names_of_files(two.original) == names_of_files(two.copied)


def test_attributes_of_directories(two: Two) -> None:
    os.setxattr(two.original / "bin", "user.old", b"1")
    os.setxattr(two.copied / "etc", "user.new", b"2")
    os.setxattr(two.copied / "etc/hosts", "user.file", b"3")
    (two.copied / "made").mkdir()
    os.setxattr(two.copied / "made", "user.made", b"4")
    (two.copied / "bin").chmod(0o700)
    two.bring_back()
    assert os.listxattr(two.original / "bin") == []
    assert os.getxattr(two.original / "etc", "user.new") == b"2"
    assert os.getxattr(two.original / "etc/hosts", "user.file") == b"3"
    assert os.getxattr(two.original / "made", "user.made") == b"4"


# Changes that do not fit are not begun, and what was begun in vain takes no room

MIB = 1 << 20
OPAQUE = "trusted.overlay.opaque"


@pytest.fixture
def original(tmp_path: Path) -> Iterator[Path]:
    """A root file system with a file of 4 MiB, and room for 4 more."""
    path = tmp_path / "original"
    with mounted(path, "-o", "size=8m"):
        (path / "etc").mkdir()
        (path / "etc" / "old").write_bytes(b"x" * 4 * MIB)
        yield path


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    path = tmp_path / "upper"
    (path / "etc").mkdir(parents=True)
    return path


def bring_difference(upper: Path, original: Path) -> None:
    bring_difference_back(
        [str(upper)], "", str(original), 0, marks=Whiteouts(OPAQUE), owners=True, whole=True,
        go_on=lambda: True,
    )  # fmt: skip


def test_it_fits(upper: Path, original: Path) -> None:
    (upper / "etc" / "new").write_bytes(b"y" * 3 * MIB)
    os.link(upper / "etc" / "new", upper / "etc" / "same")
    bring_difference(upper, original)
    assert {path.name for path in (original / "etc").iterdir()} == {"old", "new", "same"}


def test_it_takes_the_place_of_what_was_there(upper: Path, original: Path) -> None:
    (upper / "etc" / "old").write_bytes(b"y" * 3 * MIB)
    (upper / "etc" / "new").write_bytes(b"y" * (MIB // 2))
    bring_difference(upper, original)
    assert (original / "etc" / "old").read_bytes()[:1] == b"y"


def test_it_does_not_fit(upper: Path, original: Path) -> None:
    (upper / "etc" / "a").write_text("a")
    (upper / "etc" / "new").write_bytes(b"y" * 6 * MIB)
    with pytest.raises(StagingError, match=r"they need 7 MiB, and [34] are free there"):
        bring_difference(upper, original)
    assert {path.name for path in (original / "etc").iterdir()} == {"old"}


@pytest.mark.parametrize("how", ["deleted", "opaque"])
def test_there_may_be_room_when_something_is_removed(
    upper: Path, original: Path, how: str
) -> None:
    (upper / "etc" / "new").write_bytes(b"y" * 6 * MIB)
    if how == "deleted":
        os.mknod(upper / "etc" / "gone", stat.S_IFCHR)
        (original / "etc" / "gone").write_text("x")
    else:
        (upper / "dir").mkdir()
        os.setxattr(upper / "dir", OPAQUE, b"y")
    with pytest.raises(StagingError, match="No space left"):
        bring_difference(upper, original)
    space = os.statvfs(original)
    assert space.f_bavail * space.f_frsize > 3 * MIB  # no half of a file stays


@pytest.mark.parametrize("what", ["upper", "tasks", "copy", "archive", "on the node", "link"])
def test_what_is_kept(tmp_path: Path, what: str) -> None:
    record, bundle = tmp_path / "root" / "one", tmp_path / "root" / "one" / "bundle"
    overlay = bundle / "overlay"
    overlay.mkdir(parents=True)
    expected = {
        "upper": {"0-upper"}, "tasks": {"0-upper", "1-upper"}, "copy": {"0-rootfs"},
        "archive": {"0-written-0.tar"},
    }.get(what)  # fmt: skip
    for folder in {"upper": ["upper"], "tasks": ["task-0/upper", "task-1/upper"]}.get(what, []):
        (overlay / folder).mkdir(parents=True)
        (overlay / folder / "file").write_text("kept")
    if what == "copy":
        (bundle / "rootfs").mkdir()
    elif what == "link":
        (bundle / "rootfs").symlink_to("/")
    elif what in ("archive", "on the node"):
        (overlay / "upper").mkdir()
        (overlay / "place").write_text("/tmp/place")
        name = "written-0.tar" if what == "archive" else "written-0.tar.part"
        (overlay / name).write_text("kept")
    place = keep_changes(str(bundle), "one", str(record.parent))
    if expected is None:
        assert place == ""
        return
    assert Path(place).parent == tmp_path / "root"
    assert stat.S_IMODE(Path(place).stat().st_mode) == 0o700
    assert {path.name for path in Path(place).iterdir()} == expected


def test_the_longest_id(tmp_path: Path) -> None:
    bundle = tmp_path / "root" / "one" / "bundle"
    (bundle / "overlay" / "upper").mkdir(parents=True)
    place = keep_changes(str(bundle), "i" * 255, str(bundle.parent))
    assert os.listdir(place) == ["0-upper"]


async def test_where_they_are_is_said_even_if_the_bundle_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In its log is why that could not be removed; `delete` tries again."""
    said: list[tuple[str, str]] = []

    class Lost:
        async def bring_back(self, *_: object, privileged: bool) -> None:
            raise StagingError("they are kept in /there")

    def stays(directory: str) -> None:
        raise StagingError(f"cleaning {directory}: busy")

    monkeypatch.setattr(builtin, "_Changes", lambda *_: Lost())
    monkeypatch.setattr(builtin, "stage_out", stays)
    request = SimpleNamespace(journal=SimpleNamespace(write=lambda *words: said.append(words)))
    served = SimpleNamespace(staged=None, request=request, skip_stage_out=None, job=None)
    left: Any = SimpleNamespace(record=SimpleNamespace(staged="/b"), served=served, settings=None)
    with pytest.raises(StagingError, match="they are kept in /there"):
        await builtin.undo(left)
    assert said == [("error", "cleaning /b: busy")]
