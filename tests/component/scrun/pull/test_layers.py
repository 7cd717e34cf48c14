"""What layers unpack to (layer.md of the image specification)."""

import contextlib
import gzip
import io
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from scrun.core.errors import ImageError
from scrun.oci.image import find_image
from scrun.pull import layers as layers_module
from scrun.pull import programs
from scrun.pull.layers import Bounds
from scrun.pull.layout import Configuration, unpack
from scrun.pull.tar import Archive
from scrun.pull.tree import Tree
from tests.harness.oci import (
    INDEX,
    Layer,
    Layout,
    Members,
    archive,
    folder,
    hard_link,
    link,
    member,
)


def written(base: Path, *layers: Layer, limit: int = 0) -> Path:
    """Unpack an image of these layers."""
    layout = Layout(base / "layout")
    layout.tag(layout.image(layers, {}), "one")
    return unpacked(base, limit)


def unpacked(base: Path, limit: int = 0) -> Path:
    (rootfs := base / "rootfs").mkdir()
    unpack(find_image(str(base / "layout")), str(rootfs), limit)
    return rootfs


def made(base: Path, *layers: Members) -> Path:
    return written(base, *(Layer(archive(members)) for members in layers))


def names(rootfs: Path) -> list[str]:
    return sorted(str(path.relative_to(rootfs)) for path in rootfs.rglob("*"))


LOWER: Members = [
    folder("d"), member("d/f", "old"), member("d/g", "old"), folder("d/e"), member("d/e/x"),
    member("f", "old"), link("l", "d"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("upper", "there"),
    [
        ([member(".wh.f")], ["d", "d/e", "d/e/x", "d/f", "d/g", "l"]),
        ([member(".wh.nothing"), member("d/.wh.no")], None),
        ([member(".wh.d")], ["f", "l"]),
        ([member(".wh.d"), member("d/.wh.f")], ["f", "l"]),
        ([member("no/.wh.x")], ["d", "d/e", "d/e/x", "d/f", "d/g", "f", "l", "no"]),
        ([member("d/.wh..wh..opq")], ["d", "f", "l"]),
        ([member("d/new"), member("d/.wh..wh..opq")], ["d", "d/new", "f", "l"]),
        ([member("d/.wh..wh..opq"), member("d/new")], ["d", "d/new", "f", "l"]),
        ([member("d/e/new"), member("d/.wh..wh..opq")], ["d", "d/e", "d/e/new", "f", "l"]),
        ([member("d/f"), member("d/.wh.f")], None),
        ([member(".wh.f"), member("f", "new")], None),
        ([folder("d/e"), member("d/e/new"), member("d/.wh.e")],
         ["d", "d/e", "d/e/new", "d/f", "d/g", "f", "l"]),
        ([member("d", "file")], ["d", "f", "l"]),
        ([link("d", "elsewhere")], ["d", "f", "l"]),
        ([folder("f"), member("f/x")], ["d", "d/e", "d/e/x", "d/f", "d/g", "f", "f/x", "l"]),
        ([member("l/x")], ["d", "d/e", "d/e/x", "d/f", "d/g", "f", "l", "l/x"]),
        ([member("f/x")], ["d", "d/e", "d/e/x", "d/f", "d/g", "f", "f/x", "l"]),
        ([member(".wh..wh.plnk"), member("d/.wh..wh.aufs")], None),
        ([hard_link("h", "d/f")], ["d", "d/e", "d/e/x", "d/f", "d/g", "f", "h", "l"]),
        ([hard_link("d", "f")], ["d", "f", "l"]),
        ([hard_link("f", "./f")], None),
        ([], None),
    ],
)  # fmt: skip
def test_one_layer_over_another(tmp_path: Path, upper: Members, there: "list[str] | None") -> None:
    rootfs = made(tmp_path, LOWER, upper)
    assert names(rootfs) == there or [
        "d", "d/e", "d/e/x", "d/f", "d/g", "f", "l",
    ]  # fmt: skip


def test_what_is_replaced_is_not_written_to(tmp_path: Path) -> None:
    """A file that has two names keeps its content under the other one."""
    upper = [member("one", "new"), hard_link("three", "two")]
    rootfs = made(tmp_path, [member("one", "old"), hard_link("two", "one")], upper)
    content = [(rootfs / name).read_text() for name in ("one", "two", "three")]
    assert content == ["new", "old", "old"]
    assert (rootfs / "two").stat().st_nlink == 2


def test_a_path_through_a_link_of_the_same_layer(tmp_path: Path) -> None:
    """It leads where the link does in the container; archives of several sources have such."""
    names_of = [folder("usr"), folder("usr/bin"), link("bin", "/usr/bin"), link("b", "bin/../lib")]
    rootfs = made(tmp_path, [*names_of, folder("usr/lib"), member("bin/x", "1"), member("b/y")])
    assert (rootfs / "usr" / "bin" / "x").read_text() == "1"
    assert (rootfs / "usr" / "lib" / "y").exists()
    assert (rootfs / "bin").is_symlink()


def test_directories_of_volumes_are_there(tmp_path: Path) -> None:
    """But none is made through a link, or in the place of a file."""
    layout = Layout(tmp_path / "layout")
    (outside := tmp_path / "outside").mkdir()
    layers = [Layer(archive([member("f"), link("l", "f"), link("o", str(outside))]))]
    places = ("/data/deep", "f", "/f/x", "/l", "/o/x", "../../x", "", "/")
    layout.tag(layout.image(layers, {"Volumes": {place: {} for place in places}}), "one")
    assert names(unpacked(tmp_path)) == ["data", "data/deep", "f", "l", "o"]
    assert stat.S_IMODE((tmp_path / "rootfs" / "data" / "deep").stat().st_mode) == 0o755
    assert os.listdir(outside) == []


def test_modes_and_times(tmp_path: Path) -> None:
    time = 1_234_567_890.123456789
    lower = [
        folder(".", 0o751, time=time), folder("d", 0o500, time=time),
        member("d/f", "x", mode=0o4751, time=time, pax={"mtime": "1234567890.123456789"}),
        folder("d/none", 0, time=time), member("d/none/x", time=5),
        link("l", "nowhere", time=time), member("p", kind=tarfile.FIFOTYPE, mode=0o622, time=-3),
    ]  # fmt: skip
    rootfs = made(tmp_path, lower, [member("d/none/y"), folder("d", 0o1555, time=7)])
    modes = {
        name: stat.S_IMODE(os.lstat(rootfs / name).st_mode)
        for name in (".", "d", "d/f", "d/none", "p")
    }
    assert modes == {".": 0o751, "d": 0o1555, "d/f": 0o4751, "d/none": 0, "p": 0o622}
    assert os.stat(rootfs / "d/f").st_mtime_ns == 1234567890123456789
    seen = [int(os.lstat(rootfs / name).st_mtime) for name in (".", "d", "d/none", "l", "p")]
    assert seen == [1234567890, 7, 1234567890, 1234567890, -3]


@pytest.mark.by_root
def test_owners_devices_and_attributes(tmp_path: Path) -> None:
    capability = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    pax = {
        "SCHILY.xattr.security.capability": capability, "SCHILY.xattr.user.a": "b",
        "SCHILY.xattr.trusted.overlay.redirect": "/", "SCHILY.xattr.user.overlay.opaque": "y",
    }  # fmt: skip
    rootfs = made(tmp_path, [
        member("f", "x", mode=0o4755, owner=(1234, 3_000_000_000), pax=pax),
        folder("d", owner=(5, 6), pax=pax), link("l", "f", owner=(7, 8)),
        member("c", kind=tarfile.CHRTYPE, device=(1, 3), mode=0o640, owner=(9, 10)),
        member("b", kind=tarfile.BLKTYPE, device=(7, 300), mode=0o600),
    ])  # fmt: skip
    status = {name: os.lstat(rootfs / name) for name in "fdlcb"}
    owners = {name: (one.st_uid, one.st_gid) for name, one in status.items()}
    assert owners == {
        "f": (1234, 3_000_000_000),
        "d": (5, 6),
        "l": (7, 8),
        "c": (9, 10),
        "b": (0, 0),
    }
    assert status["f"].st_mode & 0o7777 == 0o4755
    assert sorted(os.listxattr(rootfs / "f")) == ["security.capability", "user.a"]
    assert os.listxattr(rootfs / "d") == ["security.capability", "user.a"]
    assert stat.S_ISCHR(status["c"].st_mode)
    assert status["c"].st_rdev == os.makedev(1, 3)
    assert status["b"].st_rdev == os.makedev(7, 300)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
def test_formats(tmp_path: Path, form: int, compression: str) -> None:
    long = "a" * 90 + "/" + "b" * 90
    members = [
        folder("a" * 90), member(long, os.urandom(200_000)), link("l", "c" * 99),
        hard_link("h", "./e"),
    ]  # fmt: skip
    members.insert(0, member("e"))
    if form != tarfile.USTAR_FORMAT:
        members += [
            link("m", "c" * 400), member("ä" * 120, "x"), member("n", owner=(3_000_000, 0)),
        ]  # fmt: skip
    rootfs = written(tmp_path, Layer(archive(members, form), compression))
    assert (rootfs / long).read_bytes() == members[2][1]
    for entry, content in members:
        path = rootfs / entry.name
        if entry.issym():
            assert os.readlink(path) == entry.linkname
        elif entry.isreg():
            assert path.read_bytes() == content
    assert os.path.samefile(rootfs / "h", rootfs / "e")


@pytest.mark.parametrize("form", ["gnu", "--pax 0.0", "--pax 0.1", "--pax 1.0"])
def test_files_with_holes(tmp_path: Path, form: str) -> None:
    (source := tmp_path / "source").mkdir()
    with open(source / "s", "wb") as file:
        for number in range(40):
            file.seek(number * 100_000)
            file.write(b"%d" % number)
        file.truncate(10_000_000)
    (source / "after").write_text("x")
    words = ["--format=gnu"] if form == "gnu" else ["--format=pax", f"--sparse-version={form[6:]}"]
    tar = ["tar", "-C", str(source), "-cSf", "-", *words, "s", "after"]
    made = subprocess.run(tar, check=True, capture_output=True).stdout
    rootfs = written(tmp_path, Layer(made))
    assert (rootfs / "s").read_bytes() == (source / "s").read_bytes()
    assert (rootfs / "s").stat().st_blocks * 512 < 2_000_000
    assert (rootfs / "after").read_text() == "x"
    rootfs.rename(tmp_path / "before")
    with pytest.raises(ImageError, match="unpacks to more than 1 MiB"):
        unpacked(tmp_path, 1 << 20)


def test_gzip_of_several_members_and_with_padding(tmp_path: Path) -> None:
    data = archive([member("a", os.urandom(300_000)), member("b", "x" * 300_000)])
    parts = [gzip.compress(data[at : at + 70_000]) for at in range(0, len(data), 70_000)]
    layout = Layout(tmp_path / "layout")
    _, diff_id = layout.layer(Layer(data))
    blob = layout.blob(b"".join(parts) + bytes(100), "application/x")
    rootfs = {"rootfs": {"type": "layers", "diff_ids": [diff_id]}}
    layout.tag(layout.manifest(rootfs, [blob]), "one")
    assert (unpacked(tmp_path) / "b").read_text() == "x" * 300_000


def _bomb(count: int) -> bytes:
    return archive([member("zeros", bytes(count))])


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_what_unpacks_to_too_much(tmp_path: Path, compression: str) -> None:
    """Not a byte more than may be is written."""
    with pytest.raises(ImageError, match=r"layer 1: unpacks to more than 8 MiB: raise \[images\]"):
        written(tmp_path, Layer(_bomb(64 << 20), compression), limit=8 << 20)
    assert (tmp_path / "rootfs" / "zeros").stat().st_size <= 8 << 20


def test_too_many_and_too_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rootfs = made(tmp_path, [folder("/".join(["d"] * 250))])
    assert (rootfs / "/".join(["d"] * 250)).is_dir()
    rootfs.rename(tmp_path / "before")
    with pytest.raises(ImageError, match="is below more than 255 directories"):
        made(tmp_path, [folder("/".join(["d"] * 260))])
    (tmp_path / "rootfs").rmdir()
    monkeypatch.setattr("scrun.pull.layers.Bounds.__init__.__defaults__", (10, 1 << 20))
    with pytest.raises(ImageError, match="has more than 10 files"):
        made(tmp_path, [member(str(number)) for number in range(11)])


def test_directories_that_no_entry_has_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bytes of a name make one, and a volume is a name, too."""
    monkeypatch.setattr("scrun.pull.layers.Bounds.__init__.__defaults__", (10, 1 << 20))
    deep = "/".join(["d"] * 11)
    with pytest.raises(ImageError, match="has more than 10 files"):
        made(tmp_path, [member(deep)])
    shutil.rmtree(tmp_path / "rootfs")
    shutil.rmtree(tmp_path / "layout")
    layout = Layout(tmp_path / "layout")
    layer = Layer(archive([member("a")]))
    layout.tag(layout.image([layer], {"Volumes": {f"/{deep}": {}}}), "one")
    with pytest.raises(ImageError, match="has more than 10 files"):
        unpacked(tmp_path)
    assert len(names(tmp_path / "rootfs")) < 12


def test_too_many_bytes_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in memory until the image is whole."""
    monkeypatch.setattr("scrun.pull.layers.Bounds.__init__.__defaults__", (1000, 2 << 20))
    long = "/".join(["x" * 200] * 20)
    with pytest.raises(ImageError, match="has more than 2 MiB of names of files"):
        made(tmp_path, [member(f"{long}/{number}") for number in range(600)])


_OF_PAX_1 = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "10"}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"x" * 5000, "is not a tar archive, or a damaged one: "),
        (b"x", "it ends too early"),
        (archive([member("a", "x" * 2000)])[:1500], "it ends too early"),
        (archive([member("a", kind=b"Z")]), "'a' is of the unknown type 'Z'"),
        (archive([member("../x")]), "'../x' leads out of the image"),
        (archive([hard_link("a", "b")]), "'a' cannot be made: No such file"),
        (archive([member("a" * 300)]), "cannot be made: File name too long"),
        (archive([folder("a"), member("a/.wh...")]), "a whiteout of this name makes no sense"),
        (archive([link("a", "b"), link("b", "a"), member("a/x")]), "Too many levels"),
        (archive([member("a", pax={"comment": "x" * (2 << 20)})]), "a header has 2097"),
        (
            archive(
                [member("a", "xx", pax={"GNU.sparse.map": "0,1000", "GNU.sparse.size": "2000"})]
            ),
            "the holes of a file are unclear",
        ),
        (
            archive([member("a", b"100001\n".ljust(512, b"\0"), pax=_OF_PAX_1)]),
            "a file has too many holes",
        ),
    ],
)
def test_what_is_no_layer(tmp_path: Path, data: bytes, told: str) -> None:
    with pytest.raises(ImageError, match="layer 1: ") as raised:
        written(tmp_path, Layer(data))
    assert told in str(raised.value)


def _pax(records: bytes) -> bytes:
    """Return an archive whose only entry has these records."""
    first = bytearray(archive([member("a", pax={"comment": "x" * 100})])[:512])
    first[124:136] = b"%011o\0" % len(records)
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    return bytes(first) + records + bytes(-len(records) % 512) + archive([member("a")])


@pytest.mark.parametrize(
    "records",
    [
        b"9 a=bcde\n0=1\n", b"9 a=bcde\n x=\n", b"9 a=bcde\n0 x=\n", b"-1 x=\n", b"99 a=b\n",
        b"7 a\0b=\n", b"8 path=a", b"12 path=a\0b\n", b"15 uid=99999999\n"[:12], b"6 a=b\n",
        b"26 SCHILY.xattr.user.a\0=b\n", b"9 uid=-1\n", b"18 uid=4294967295\n", b"=\n", b"\n",
        b"26 size=9999999999999999999\n", b"27 size=9999999999999999999\n",
        b"10 mtime=\n", b"12 mtime=x\n", b"14 mtime=1.x\n",
    ],
)  # fmt: skip
def test_records_of_pax_that_are_odd(tmp_path: Path, records: bytes) -> None:
    """They are read or refused, and at once."""
    layout = Layout(tmp_path / "layout")
    layout.tag(layout.image([Layer(_pax(records))], {}), "one")
    (rootfs := tmp_path / "rootfs").mkdir()
    told = ""
    try:
        unpack(find_image(str(layout.path)), str(rootfs), 0)
    except ImageError as error:
        told = str(error)
    assert "layer 1: is not a tar archive" in told or names(rootfs) == ["a"]


def test_layers_that_somebody_has_damaged(tmp_path: Path, dice: random.Random) -> None:
    """Whatever is in it, it is read or refused."""
    whole = archive([
        folder("a"), member("a/b", "x" * 700, pax={"SCHILY.xattr.user.a": "b", "mtime": "1.5"}),
        link("l", "a"), member("l/x"), hard_link("h", "a/b"), member("a/.wh..wh..opq"),
        member("c", kind=tarfile.CHRTYPE), member("f", kind=tarfile.FIFOTYPE), member("n" * 180),
    ])  # fmt: skip
    places = (0, 100, 108, 116, 124, 125, 136, 156, 157, 257, 329, 337, 345)
    words = (
        b"../",
        b".wh.",
        b".wh...",
        b"\xff" * 12,
        b"7" * 11,
        b"-1",
        b"S",
        b"x",
        b"L",
        b"\0" * 12,
    )
    for number in range(100):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 6)):
            at = dice.randrange(len(data) // 512) * 512 + dice.choice(places)
            word = dice.choice(words)
            data[at : at + len(word)] = word
        for at in range(0, len(data) - 511, 512):
            if data[at + 257 : at + 262] == b"ustar":
                data[at + 148 : at + 156] = b" " * 8
                data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
        stream = io.BytesIO(data)
        (place := tmp_path / str(number)).mkdir()
        with (
            contextlib.suppress(ImageError),
            Tree(str(place), Bounds(1 << 26, 1000)) as tree,
        ):
            tree.add(Archive(stream.read, lambda count, of=stream: of.seek(count, 1) and None))  # type: ignore[misc]
            tree.finish()
    assert sorted(os.listdir(tmp_path)) == sorted(map(str, range(100)))


def test_another_layer_than_the_configuration_says(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    blob, _ = layout.layer(Layer(archive([member("a")])))
    _, other = layout.layer(Layer(archive([member("b")])))
    rootfs = {"rootfs": {"type": "layers", "diff_ids": [other]}}
    layout.tag(layout.manifest(rootfs, [blob]), "one")
    with pytest.raises(ImageError, match="layer 1: is not what the image says: sha256:"):
        unpacked(tmp_path)


@pytest.mark.parametrize("part", ["layer", "config", "manifest"])
@pytest.mark.parametrize("harm", ["bit", "longer", "gone", "fifo", "folder", "device"])
def test_damaged_blobs(tmp_path: Path, part: str, harm: str) -> None:
    layout = Layout(tmp_path / "layout")
    layout.tag(layout.image([Layer(archive([member("a")]))], {}), "one")
    manifest = layout.read(layout.tagged("one"))
    found = {
        "layer": manifest["layers"][0], "config": manifest["config"],
        "manifest": layout.tagged("one"),
    }[part]  # fmt: skip
    path = layout.path / "blobs" / "sha256" / found["digest"][7:]
    content = path.read_bytes()
    path.unlink()
    if harm == "bit":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif harm == "longer":
        path.write_bytes(content + b"\n")
    elif harm == "fifo":
        os.mkfifo(path)
    elif harm == "folder":
        path.mkdir()
    elif harm == "device":
        path.symlink_to("/dev/zero")
    with pytest.raises(ImageError, match="get the image again"):
        unpacked(tmp_path)


@pytest.mark.parametrize("more", [-1, 1, 1 << 40])
def test_a_size_that_is_another(tmp_path: Path, more: int) -> None:
    """The digest may be right: what is announced is what was counted before it came."""
    layout = Layout(tmp_path / "layout")
    blob, diff_id = layout.layer(Layer(archive([member("a")])))
    rootfs = {"rootfs": {"type": "layers", "diff_ids": [diff_id]}}
    layout.tag(layout.manifest(rootfs, [{**blob, "size": blob["size"] + more}]), "one")
    with pytest.raises(ImageError, match=f"has {blob['size']} bytes instead of"):
        unpacked(tmp_path)


def test_the_image_of_this_platform(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    other = layout.image([], {}, architecture="s390x")
    own = layout.image([Layer(archive([member("own")]))], {})
    layout.tag(layout.several([other, layout.several([own]) | {"platform": own["platform"]}]), "x")
    assert names(unpacked(tmp_path)) == ["own"]
    layout.tag(layout.several([other]), "x")
    (tmp_path / "rootfs").rename(tmp_path / "before")
    with pytest.raises(ImageError, match="there is no image for linux/"):
        unpacked(tmp_path)


def test_indexes_without_an_end(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    descriptor = layout.image([], {})
    platform = descriptor["platform"]
    for _ in range(9):
        descriptor = layout.several([descriptor]) | {"platform": platform}
    layout.tag(descriptor, "x")
    assert descriptor["mediaType"] == INDEX
    with pytest.raises(ImageError):
        unpacked(tmp_path)


def test_what_is_no_image_of_a_container(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    config = layout.blob({}, "application/vnd.cncf.helm.config.v1+json")
    layout.tag(layout.blob({"config": config, "layers": []}, "application/x"), "x")
    with pytest.raises(ImageError, match="is not an image of a container, but has"):
        unpacked(tmp_path)


def test_zstd_ends_with_scrun(tmp_path: Path) -> None:
    """However that ends."""
    (slow := tmp_path / "zstd").write_text("#!/bin/sh\necho $$ >&2\nexec sleep 600\n")
    slow.chmod(0o755)
    layout = Layout(tmp_path / "layout")
    layout.tag(layout.image([Layer(archive([]), "zstd")], {}), "one")
    (tmp_path / "rootfs").mkdir()
    code = (
        "import sys\nfrom scrun.oci.image import find_image\nfrom scrun.pull import programs\n"
        "from scrun.pull.layout import unpack\nimport os\nprograms.os.memfd_create = lambda _: "
        "os.dup(2)\nunpack(find_image(sys.argv[1]), sys.argv[2], 0)"
    )
    words = [sys.executable, "-c", code, str(layout.path), str(tmp_path / "rootfs")]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr
        pid = int(process.stderr.readline())
        pidfd = os.pidfd_open(pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stderr.read() == b""  # its last holder has ended
        os.close(pidfd)


def test_a_program_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path / "layout")
    layout.tag(layout.image([Layer(archive([member("a")]), "zstd")], {}), "one")
    (slow := tmp_path / "zstd").write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    (tmp_path / "skopeo").symlink_to(slow)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(programs, "PATIENCE", 0.3)
    monkeypatch.setattr(layers_module, "PATIENCE", 0.3)
    with pytest.raises(ImageError, match="layer 1: nothing of it arrived for"):
        unpacked(tmp_path)
    with pytest.raises(ImageError, match="x: it made no progress for "):
        programs.run("skopeo", what="x")


def test_a_program_that_makes_progress_may_take_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (busy := tmp_path / "skopeo").write_text(
        "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9; do sleep 0.2; read x </etc/passwd; done\n"
    )
    busy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(programs, "PATIENCE", 1.5)
    assert programs.run("skopeo", what="x") == b""


def test_the_configuration(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    layout.tag(layout.image([], {"Cmd": ["x"]}), "one")
    (rootfs := tmp_path / "rootfs").mkdir()
    found = unpack(find_image(str(layout.path)), str(rootfs), 0)
    assert isinstance(found, Configuration)
    assert found.run == {"Cmd": ["x"]}
