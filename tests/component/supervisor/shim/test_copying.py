"""Packing and unpacking, on this machine: names, links, and archives that are wrong."""

import io
import os
import stat
import subprocess
import tarfile
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.cli.copied import INTO, copier
from scrun.supervisor.shim.copying import SAID, CutOff, pack, unpack
from scrun.supervisor.shim.entering import Refused


def packed(path: str) -> bytes:
    with tempfile.TemporaryFile() as sink:
        pack(path, sink.fileno())
        sink.seek(0)
        return sink.read()


def archive(*members: tarfile.TarInfo) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for member in members:
            tar.addfile(member)
    made.seek(0)
    return made


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(Refused, match="leads out"):
        unpack(archive(member(name)), f"{tmp_path}/in")
    with pytest.raises(Refused, match="leads out"):
        unpack(archive(member("x", tarfile.LNKTYPE, name)), f"{tmp_path}/in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_nothing_goes_through_a_link(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    made = archive(member("away", tarfile.SYMTYPE, ".."), member("away/x"))
    with pytest.raises(NotADirectoryError):
        unpack(made, str(inside))
    with pytest.raises(OSError, match=r"Not a directory|No such file"):
        unpack(archive(member("y", tarfile.LNKTYPE, "away/in/z")), str(inside))
    assert sorted(os.listdir(tmp_path)) == ["in"]
    assert os.listdir(inside) == ["away"]


def test_several_at_once_need_a_directory(tmp_path: Path) -> None:
    made = archive(member("a"), member("b"))
    with pytest.raises(Refused, match="name a directory"):
        unpack(made, f"{tmp_path}/new")
    made.seek(0)
    unpack(made, str(tmp_path))
    assert {"a", "b"} <= set(os.listdir(tmp_path))


def test_a_file_takes_the_place_of_another_or_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")
    (tmp_path / "a").symlink_to("other")
    unpack(archive(member("a")), str(tmp_path))
    assert (tmp_path / "other").read_text() == "other"
    assert not (tmp_path / "a").is_symlink()
    (tmp_path / "b").mkdir()
    with pytest.raises(IsADirectoryError):
        unpack(archive(member("b")), str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "other"]


def test_a_device_stays(tmp_path: Path) -> None:
    """/dev/null is one, and root may replace it."""
    os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mkfifo(tmp_path / "fifo")
    for name in ("null", "fifo"):
        for made in (member(name), member(name, tarfile.SYMTYPE, "x"), member(f"a/{name}")):
            target = tmp_path if made.name == name else f"{tmp_path}/{name}"
            with pytest.raises(OSError, match=r"stays|Not a directory"):
                unpack(archive(made), str(target))
        with pytest.raises(OSError, match="a FIFO or a socket, and stays"):
            unpack(archive(member("x")), f"{tmp_path}/{name}")
    assert (tmp_path / "null").is_char_device()
    assert (tmp_path / "fifo").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["fifo", "null"]


def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o750)
    folder = member("d", tarfile.DIRTYPE)
    folder.mode = 0o777
    unpack(archive(folder, member("d/x")), str(tmp_path))
    assert (tmp_path / "d").stat().st_mode & 0o7777 == 0o750
    assert (tmp_path / "d/x").exists()


def test_a_directory_that_may_not_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_text("f")
    (tmp_path / "d/e").chmod(0o500)
    unpack(io.BytesIO(packed(f"{tmp_path}/d")), f"{tmp_path}/new")
    assert (tmp_path / "new/e/f").read_text() == "f"
    assert (tmp_path / "new/e").stat().st_mode & 0o777 == 0o500


def test_devices_are_left_out(tmp_path: Path) -> None:
    assert unpack(archive(member("null", tarfile.CHRTYPE), member("a")), str(tmp_path)) == 1
    assert os.listdir(tmp_path) == ["a"]
    with tempfile.TemporaryFile() as sink:
        with pytest.raises(Refused, match="/dev/null is a device"):
            pack("/dev/null", sink.fileno())
        with pytest.raises(NotADirectoryError):
            pack(f"{tmp_path}/a/.", sink.fileno())


@given(name=st.text(st.characters(exclude_characters="\0/"), min_size=1, max_size=60))
def test_any_name(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    if name in (".", ".."):
        return
    place = tmp_path_factory.mktemp("names")
    raw = os.fsencode(place) + b"/d/" + name.encode("utf-8", "surrogatepass")
    (place / "d").mkdir()
    with open(raw, "wb") as file:
        file.write(b"x")
    os.symlink(raw, os.fsencode(place) + b"/d/link\xff")
    unpack(io.BytesIO(packed(f"{place}/d")), f"{place}/new")
    assert os.listdir(os.fsencode(place / "new")) == os.listdir(os.fsencode(place / "d"))
    assert os.readlink(os.fsencode(place) + b"/new/link\xff") == raw


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 300_000])
def test_sizes(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    os.utime(tmp_path / "a", (5, 1_000_000_007))
    unpack(io.BytesIO(packed(f"{tmp_path}/a")), f"{tmp_path}/b")
    assert (tmp_path / "b").read_bytes() == content
    assert (tmp_path / "b").stat().st_mtime == 1_000_000_007


def test_many_files_take_no_memory(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"{number:04}").write_text("x")
    with open("/dev/null", "wb") as sink:
        tracemalloc.start()
        try:
            pack(str(tmp_path), sink.fileno())
            assert tracemalloc.get_traced_memory()[1] < 1_250_000
        finally:
            tracemalloc.stop()


@pytest.mark.filterwarnings("error")
def test_an_archive_that_cannot_be_written(tmp_path: Path) -> None:
    """Neither does it end as if it were complete, nor is there a traceback."""
    (tmp_path / "a").write_bytes(bytes(9_000_000))
    here, there = os.pipe()
    os.close(here)
    try:
        with pytest.raises(BrokenPipeError):
            pack(f"{tmp_path}/a", there)
    finally:
        os.close(there)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a").symlink_to("d")
    with tempfile.TemporaryFile() as sink, pytest.raises(OSError, match="No such file"):
        pack(f"{tmp_path}/d/b", sink.fileno())


@pytest.mark.parametrize("cut", [1, 700, 5000])
def test_an_archive_that_ends_too_early(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a").write_bytes(bytes(9000))
    with pytest.raises((CutOff, tarfile.ReadError), match=r"^$|end of data"):
        unpack(io.BytesIO(packed(f"{tmp_path}/a")[:cut]), f"{tmp_path}/b")
    assert os.listdir(tmp_path) == ["a"]


def test_damage_is_not_the_end(tmp_path: Path) -> None:
    """For `tarfile` the first header that is damaged ends an archive."""
    whole = archive(member("a"), member("b"), member("c")).getvalue()
    for damaged, error in [
        (whole[:512] + b"x" * 512 + whole[1024:], tarfile.ReadError),
        (whole[:1100], CutOff),
        (whole[:1536], CutOff),
    ]:
        with pytest.raises(error):
            unpack(io.BytesIO(damaged), str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


@pytest.mark.parametrize("wrong", [{"mtime": "inf"}, {"mtime": "1e300"}, {"size": "-5"}])
def test_numbers_that_are_none(tmp_path: Path, wrong: dict[str, str]) -> None:
    info = member("a")
    info.pax_headers = wrong
    assert copy_of(archive(info), str(tmp_path)) == (SAID, "not a tar archive, or damaged")
    assert os.listdir(tmp_path) == []


def copy_of(source: io.BytesIO, path: str) -> tuple[int, str]:
    """What the program does with an archive: its exit status, and what it says at the end."""
    done = subprocess.run(copier(INTO, path), input=source.getvalue(), capture_output=True)
    said = done.stderr.decode()
    return done.returncode, said.removeprefix("scrun: cp: what arrives is ").partition(":")[0]


def test_holes_stay_holes(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 50 << 20)
    unpack(io.BytesIO(packed(f"{tmp_path}/a")), f"{tmp_path}/b")
    status = (tmp_path / "b").stat()
    assert status.st_size == 50 << 20
    assert status.st_blocks < 100


def test_a_directory_for_everybody(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o1777)
    unpack(io.BytesIO(packed(f"{tmp_path}/a")), f"{tmp_path}/b")
    assert (tmp_path / "b").stat().st_mode & 0o7777 == 0o1777


def test_what_the_kernel_shows(tmp_path: Path) -> None:
    """It says that its files are empty, and some of its directories have no end."""
    unpack(io.BytesIO(packed("/proc/self/status")), f"{tmp_path}/status")
    assert (tmp_path / "status").read_text().startswith("Name:")
    with tempfile.TemporaryFile() as sink:
        left_out, failed = pack("/dev/.", sink.fileno())
    assert left_out > 3
    assert failed == 0


def test_what_may_not_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is said, by its whole path, and the rest is there."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    for name in ("1", "b/2", "b/c/3"):
        (tmp_path / "a" / name).write_text("x")
    secret = tmp_path / "a/b/secret"
    secret.mkdir(mode=0)
    tmp_path.chmod(0o755)
    with tempfile.TemporaryFile() as sink:
        here = os.open(tmp_path, os.O_RDONLY)
        pid = os.fork()
        if pid == 0:
            status = 9
            try:
                os.fchdir(here)  # others may not pass by its parents
                os.setuid(20001)
                status = int(pack("a", sink.fileno()) != (0, 1))
            finally:
                os._exit(status)
        os.close(here)
        assert os.waitpid(pid, 0)[1] == 0
        sink.seek(0)
        with tarfile.open(fileobj=sink) as tar:
            assert {"a/1", "a/b/2", "a/b/c/3"} < {*tar.getnames()}
    assert capfd.readouterr().err == "scrun: cp: a/b/secret: Permission denied\n"
