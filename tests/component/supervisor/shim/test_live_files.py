"""The files of a container, served by the program of the shim's to a kernel that asks (FUSE)."""

import errno
import os
import stat
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.supervisor.shim.live_files import LiveFiles
from scrun.supervisor.wire import fuse
from scrun.supervisor.wire.fuse import ATTR, ENTRY, IN, OUT, ROOT

_OPENED = struct.Struct("=QII")


class Asking:
    """Asks as the kernel does."""

    def __init__(self, root: Path) -> None:
        self.files = LiveFiles(str(root))
        self._last = 0

    def ask(self, code: int, number: int = ROOT, body: bytes = b"") -> bytes:
        self._last += 2
        head = IN.pack(IN.size + len(body), code, self._last, number, 0, 0, 1, 0)
        answer = self.files.answer(memoryview(head + body))
        length, error, unique = OUT.unpack_from(answer)
        assert (length, unique) == (len(answer), self._last)
        if error:
            raise OSError(-error, os.strerror(-error))
        return answer[OUT.size :]

    def look(self, *names: str) -> tuple[int, int]:
        """Look a path up; return its number and its mode."""
        number = ROOT
        mode = stat.S_IFDIR
        for name in names:
            answer = self.ask(fuse.LOOKUP, number, os.fsencode(name) + b"\0")
            number = ENTRY.unpack_from(answer)[0]
            mode = ATTR.unpack_from(answer, ENTRY.size)[9]
        return number, mode

    def open(self, number: int, flags: int = os.O_RDONLY) -> int:
        handle: int = _OPENED.unpack(self.ask(fuse.OPEN, number, struct.pack("=II", flags, 0)))[0]
        return handle

    def read(self, number: int, offset: int = 0, size: int = 1 << 17) -> bytes:
        return self.ask(fuse.READ, 0, struct.pack("=QQIIQII", number, offset, size, 0, 0, 0, 0))

    def write(self, number: int, data: bytes, offset: int = 0) -> None:
        head = struct.pack("=QQIIQII", number, offset, len(data), 0, 0, 0, 0)
        assert self.ask(fuse.WRITE, 0, head + data) == struct.pack("=II", len(data), 0)

    def names(self, number: int, size: int = 4096) -> list[bytes]:
        """List a directory, as much at a time as fits."""
        handle = self.open_folder(number)
        found: list[tuple[int, bytes]] = []
        while piece := self.listed(handle, found[-1][0] if found else 0, size):
            found += piece
        return [name for _, name in found]

    def open_folder(self, number: int) -> int:
        handle: int = _OPENED.unpack(self.ask(fuse.OPENDIR, number, bytes(8)))[0]
        return handle

    def listed(self, handle: int, offset: int, size: int = 4096) -> list[tuple[int, bytes]]:
        """Return what one answer lists: where each is followed, and its name."""
        body = struct.pack("=QQIIQII", handle, offset, size, 0, 0, 0, 0)
        data = self.ask(fuse.READDIRPLUS, ROOT, body)
        assert len(data) <= size
        found, at = [], 0
        while at < len(data):
            at += ENTRY.size + ATTR.size
            _, offset, length, _ = struct.unpack_from("=QQII", data, at)
            found.append((offset, data[at + 24 : at + 24 + length]))
            at += 24 + length + -length % 8
        return found


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    asking = Asking(tmp_path)
    yield asking
    asking.files.close_all()


def test_a_file_is_read_and_written(asking: Asking, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"0123456789")
    number, mode = asking.look("d", "f")
    assert stat.S_ISREG(mode)
    handle = asking.open(number, os.O_RDWR)
    assert asking.read(handle, 3, 4) == b"3456"
    asking.write(handle, b"ab", 8)
    assert (tmp_path / "d" / "f").read_bytes() == b"01234567ab"
    asking.ask(fuse.RELEASE, number, struct.pack("=QIIQ", handle, 0, 0, 0))
    with pytest.raises(OSError, match="Bad file descriptor"):
        asking.read(handle)


def test_links_are_not_followed(asking: Asking, tmp_path: Path) -> None:
    """The kernel that asks resolves them; a new one is an error."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("own")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "f").write_text("another")
    number, _ = asking.look("d", "f")
    asking.files.close_all()
    (tmp_path / "d").rename(tmp_path / "away")
    (tmp_path / "d").symlink_to("other")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links") as refused:
        asking.open(number)
    assert refused.value.errno in (errno.ENOTDIR, errno.ELOOP)
    link, mode = asking.look("d")
    assert stat.S_ISLNK(mode)
    assert asking.ask(fuse.READLINK, link) == b"other"
    (tmp_path / "away" / "f").unlink()
    (tmp_path / "away" / "f").symlink_to("/etc/passwd")
    (tmp_path / "d").unlink()
    (tmp_path / "away").rename(tmp_path / "d")
    with pytest.raises(OSError, match="symbolic links"):
        asking.open(number)


@pytest.mark.parametrize("name", [b"..", b".", b"", b"a/b", b"../../etc/passwd"])
def test_names_that_lead_elsewhere(asking: Asking, name: bytes) -> None:
    for code in (fuse.LOOKUP, fuse.UNLINK, fuse.RMDIR):
        with pytest.raises(OSError, match="Invalid argument"):
            asking.ask(code, ROOT, name + b"\0")
    with pytest.raises(OSError, match="Invalid argument"):
        asking.ask(fuse.MKDIR, ROOT, struct.pack("=II", 0o755, 0) + name + b"\0")


def test_a_fifo_that_was_a_file_is_not_opened(asking: Asking, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    number, _ = asking.look("f")
    (tmp_path / "f").unlink()
    os.mkfifo(tmp_path / "f")
    with pytest.raises(OSError, match="Stale"):
        asking.open(number)
    assert stat.S_ISFIFO(asking.look("f")[1])


def test_devices_are_not_made(asking: Asking, tmp_path: Path) -> None:
    body = struct.pack("=IIII", stat.S_IFCHR | 0o666, os.makedev(1, 3), 0, 0) + b"null\0"
    with pytest.raises(OSError, match="not permitted"):
        asking.ask(fuse.MKNOD, ROOT, body)
    assert os.listdir(tmp_path) == []


def test_a_name_that_means_another_file_has_another_number(asking: Asking, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    first = asking.look("f")
    assert asking.look("f") == first
    (tmp_path / "g").write_text("")
    (tmp_path / "g").rename(tmp_path / "f")
    assert asking.look("f") != first


def test_proc_keeps_its_number(asking: Asking, tmp_path: Path) -> None:
    """Another one is mounted there."""
    for _ in range(2):
        (tmp_path / "proc").mkdir()
        assert asking.look("proc")[0] == fuse.PROC
        (tmp_path / "proc").rename(tmp_path / f"old{os.urandom(4).hex()}")


def test_a_process_that_comes_later_knows_no_numbers_of_an_earlier_one(
    asking: Asking, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("")
    number, _ = asking.look("f")
    later = Asking(tmp_path)
    later.look("f")
    with pytest.raises(OSError, match="Stale"):
        later.open(number)


def test_a_directory_with_many_entries_and_odd_names(asking: Asking, tmp_path: Path) -> None:
    odd = [b"a\nb", b"\xff\xfe", b" ", b"-rf", b"x" * 255, "\u00fc".encode()]
    names = sorted([*odd, *(b"%05d" % number for number in range(5000))])
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(b"")
    assert sorted(asking.names(ROOT)) == names


def test_a_directory_is_read_as_it_is_asked_for(asking: Asking, tmp_path: Path) -> None:
    """So one with a million entries takes no more memory, and the first answer no longer."""
    for number in range(10_000):
        (tmp_path / f"{number:05}").touch()
    tracemalloc.start()
    try:
        handle = asking.open_folder(ROOT)
        first = asking.listed(handle, 0)
        assert asking.listed(handle, first[-1][0])
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()


def test_who_lists_goes_back(asking: Asking, tmp_path: Path) -> None:
    handle = asking.open_folder(ROOT)
    assert asking.listed(handle, 0) == []
    for number in range(100):
        (tmp_path / f"{number:03}").touch()
    found: list[tuple[int, bytes]] = []
    while piece := asking.listed(handle, len(found)):
        found += piece
    assert sorted(name for _, name in found) == [b"%03d" % number for number in range(100)]
    for at in (0, 90, 50, 52, 1, 97):  # it may not have taken all of an answer
        assert asking.listed(handle, at, 600) == found[at : at + 3]
    assert asking.listed(handle, 1000) == []
    assert asking.listed(handle, 49, 600) == found[49:52]
    (tmp_path / os.fsdecode(found[50][1])).unlink()
    assert asking.listed(handle, 49, 600) == [found[49], *found[51:53]]
    descriptors = len(os.listdir("/proc/self/fd"))
    asking.ask(fuse.RELEASEDIR, ROOT, struct.pack("=QIIQ", handle, 0, 0, 0))
    assert len(os.listdir("/proc/self/fd")) < descriptors - 1


def test_a_tree_that_is_deeper_than_a_path_may_be(asking: Asking, tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    depth = 300
    for _ in range(depth):
        os.mkdir("d" * 50, dir_fd=here)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    number, _ = asking.look(*["d" * 50] * depth, "f")
    before = len(os.listdir("/proc/self/fd"))
    asking.files.close_all()
    handle = asking.open(number)
    assert asking.read(handle) == b""
    assert len(os.listdir("/proc/self/fd")) <= before + 20


def test_what_is_forgotten_takes_no_memory(asking: Asking, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("")
        folder, _ = asking.look(name)
        file, _ = asking.look(name, "f")
        for number, count in ((file, 1), (folder, 2)):
            body = struct.pack("=QQ", number, count)
            head = struct.pack("=II", 1, 0)
            request = IN.pack(IN.size + 24, fuse.BATCH_FORGET, 2, 0, 0, 0, 0, 0) + head + body
            assert asking.files.answer(memoryview(request)) == b""
        with pytest.raises(OSError, match="Stale"):
            asking.open(file)
    assert asking.files.known == {ROOT, fuse.PROC}


def test_memory_for_names_is_bounded(
    asking: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that nobody has asked for lately are not known any more: the kernel asks again."""
    monkeypatch.setattr("scrun.supervisor.shim.live_files._MOST_FILES", 64)
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "file").write_text("content")
    open_one, _ = asking.look("held", "file")
    handle = asking.open(open_one)
    first = 0
    for name in range(500):
        (tmp_path / f"{name}").touch()
        number, _ = asking.look(f"{name}")
        first = first or number
        assert len(asking.files.known) <= 65
    with pytest.raises(OSError, match="Stale") as refused:
        asking.ask(fuse.GETATTR, first, bytes(16))
    assert refused.value.errno == errno.ESTALE
    assert asking.ask(fuse.GETATTR, number, bytes(16))
    assert asking.read(handle) == b"content"
    assert asking.ask(fuse.GETATTR, open_one, bytes(16))
    folder = ROOT
    for _ in range(200):  # each is the directory of the next one
        try:
            asking.ask(fuse.MKDIR, folder, struct.pack("=II", 0o755, 0) + b"d\0")
            folder = ENTRY.unpack_from(asking.ask(fuse.LOOKUP, folder, b"d\0"))[0]
        except OSError:
            folder = ROOT
        assert len(asking.files.known) <= 66
    assert asking.look("held", "file")[0] == open_one


def test_what_a_kernel_changes(asking: Asking, tmp_path: Path) -> None:
    made = asking.ask(
        fuse.CREATE, ROOT, struct.pack("=IIII", os.O_WRONLY, 0o666, 0o022, 0) + b"f\0"
    )
    number = ENTRY.unpack_from(made)[0]
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644
    valid = 1 | 8 | 16 | 32  # mode, size, times
    times = (1, 2, 3, 4, 5, 6)
    body = struct.pack("=IIQQQQQQIIIIIIII", valid, 0, 0, 7, 0, *times, 0o600, 0, 0, 0, 0)
    asking.ask(fuse.SETATTR, number, body)
    found = (tmp_path / "f").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_size) == (0o600, 7)
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_000000004, 2_000000005)
    asking.ask(fuse.MKDIR, ROOT, struct.pack("=II", 0o777, 0o027) + b"d\0")
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o750
    folder, _ = asking.look("d")
    asking.ask(fuse.RENAME, ROOT, struct.pack("=Q", folder) + b"f\0g\0")
    asking.ask(fuse.SYMLINK, folder, b"link\0g\0")
    asking.ask(fuse.LINK, folder, struct.pack("=Q", number) + b"again\0")
    assert sorted(os.listdir(tmp_path / "d")) == ["again", "g", "link"]
    assert os.readlink(tmp_path / "d" / "link") == "g"
    assert (tmp_path / "d" / "again").samefile(tmp_path / "d" / "g")
    for name in ("again", "g", "link"):
        asking.ask(fuse.UNLINK, folder, name.encode() + b"\0")
    asking.ask(fuse.RMDIR, ROOT, b"d\0")
    assert os.listdir(tmp_path) == []


def test_what_is_no_request(asking: Asking) -> None:
    with pytest.raises(OSError, match="not implemented"):
        asking.ask(999)
    with pytest.raises(OSError, match="Invalid argument"):
        asking.ask(fuse.READ, ROOT, b"short")


def test_a_deep_directory_that_is_gone_leaves_nothing_open(tmp_path: Path) -> None:
    """Whoever removes it is in the container."""
    asking = Asking(tmp_path)
    names = [str(number) for number in range(40)]
    os.makedirs(tmp_path.joinpath(*names))
    number, _ = asking.look(*names)
    os.rename(tmp_path.joinpath(*names[:20]), tmp_path / "elsewhere")
    asking.files.close_all()
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            asking.ask(fuse.LOOKUP, number, b"file\0")
    asking.files.close_all()
    assert len(os.listdir("/proc/self/fd")) == len(before)
