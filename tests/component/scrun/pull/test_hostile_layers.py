"""Images of somebody who means no good: nothing outside of the store is written or read."""

import os
import tarfile
from pathlib import Path

import pytest

from scrun.core.errors import ScrunError
from scrun.images.store import Store
from scrun.oci.image import find_image
from scrun.pull.get import Request, get
from scrun.pull.layout import manifest_digest
from scrun.pull.reference import parse
from tests.harness.oci import Layer, Layout, archive, member


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").write_text("mine")
    return folder


def image_of(base: Path, *entries: tuple[str, bytes, str], layers: int = 1) -> str:
    """Make an image: name, type and target or content of each entry.

    Args:
        base: Where.
        entries: The entries.
        layers: How many layers they are spread over.
    """
    members = [
        member(
            *(name, "" if kind != tarfile.REGTYPE else text),
            kind=kind,
            mode=0o755,
            link="" if kind == tarfile.REGTYPE else text,
            device=(1, 5),
        )
        for name, kind, text in entries
    ]
    layout = Layout(base / "layout")
    size = -(-len(members) // layers)
    parts = [members[at : at + size] for at in range(0, len(members), size)]
    layout.tag(layout.image([Layer(archive(part)) for part in parts], {}), "one")
    return f"oci:{layout.path}:one"


def unpacked(base: Path, image: str) -> "Path | None":
    def say(text: str, share: float | None = None) -> None:
        del text, share

    store = Store(str(base / "store"))
    try:
        entry = get(parse(image), Request(store, 0, say, shown=False, warn=say))
    except ScrunError:
        assert os.listdir(base / "store" / "tmp") == []
        assert store.entries() == []
        return None
    return Path(entry.rootfs)


@pytest.mark.parametrize(
    "entries",
    [
        [("../../../../victim/file", tarfile.REGTYPE, "theirs")],
        [("/../victim/file", tarfile.REGTYPE, "theirs")],
        [("out", tarfile.SYMTYPE, "VICTIM"), ("out/file", tarfile.REGTYPE, "theirs")],
        [("out", tarfile.SYMTYPE, "VICTIM"), ("out/new", tarfile.DIRTYPE, "")],
        [("hard", tarfile.LNKTYPE, "VICTIM/file"), ("hard", tarfile.REGTYPE, "theirs")],
        [("out", tarfile.SYMTYPE, "VICTIM"), ("out/.wh.file", tarfile.REGTYPE, "")],
        [("../victim/.wh..wh..opq", tarfile.REGTYPE, "")],
        [("out", tarfile.SYMTYPE, "VICTIM"), ("out/.wh..wh..opq", tarfile.REGTYPE, "")],
        [("out", tarfile.SYMTYPE, "VICTIM"), ("out", tarfile.DIRTYPE, "")],
        [("out", tarfile.DIRTYPE, ""), ("out", tarfile.SYMTYPE, "VICTIM")],
        [("a/out", tarfile.DIRTYPE, ""), ("a", tarfile.SYMTYPE, "VICTIM/..")],
        [
            ("a/victim", tarfile.DIRTYPE, ""),
            (".wh.a", tarfile.REGTYPE, ""),
            ("a", tarfile.SYMTYPE, "../../.."),
        ],
        [("out", tarfile.SYMTYPE, "VICTIM"), ("hard", tarfile.LNKTYPE, "out/file")],
        [("out", tarfile.SYMTYPE, "VICTIM/file"), ("out", tarfile.REGTYPE, "theirs")],
        [
            ("out", tarfile.SYMTYPE, "VICTIM/file"),
            ("hard", tarfile.LNKTYPE, "out"),
            ("hard", tarfile.REGTYPE, "theirs"),
        ],
        [("a/b", tarfile.DIRTYPE, ""), ("a/.wh...", tarfile.REGTYPE, "")],
        [("a/b", tarfile.DIRTYPE, ""), ("a/b/.wh..", tarfile.REGTYPE, "")],
        [("a", tarfile.SYMTYPE, "b"), ("b", tarfile.SYMTYPE, "a"), ("a/c", tarfile.DIRTYPE, "")],
        [("a", tarfile.SYMTYPE, "../../../victim"), ("a/x", tarfile.REGTYPE, "theirs")],
        [("", tarfile.SYMTYPE, "VICTIM"), (".", tarfile.SYMTYPE, "VICTIM")],
    ],
)
@pytest.mark.parametrize("layers", [1, 9])
def test_nothing_outside_is_touched(
    tmp_path: Path, victim: Path, entries: list[tuple[str, bytes, str]], layers: int
) -> None:
    before = [_identity(path) for path in (victim, victim / "file", tmp_path)]
    named = [(name, kind, text.replace("VICTIM", str(victim))) for name, kind, text in entries]
    unpacked(tmp_path, image_of(tmp_path, *named, layers=layers))
    assert os.listdir(victim) == ["file"]
    assert (victim / "file").read_text() == "mine"
    (tmp_path / "layout").rename(tmp_path / "gone")
    assert [_identity(path) for path in (victim, victim / "file")] == before[:2]
    assert _identity(tmp_path)[:3] == before[2][:3]


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()
    times = (status.st_mtime_ns, status.st_nlink)
    return (status.st_mode, status.st_uid, status.st_gid, *times)


def test_links_of_an_image_stay_links(tmp_path: Path, victim: Path) -> None:
    rootfs = unpacked(tmp_path, image_of(tmp_path, ("a", tarfile.SYMTYPE, str(victim))))
    assert rootfs is not None
    assert (rootfs / "a").readlink() == victim


def test_directories_without_permissions_can_be_removed(tmp_path: Path) -> None:
    rootfs = unpacked(tmp_path, image_of(tmp_path, ("a/b/c", tarfile.REGTYPE, "x")))
    assert rootfs is not None
    for folder in ("a/b", "a"):
        (rootfs / folder).chmod(0)
    store = Store(str(tmp_path / "store"))
    [entry] = store.entries()
    assert store.remove(entry.key) == []
    assert not rootfs.exists()


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:../../../../victim/file",
        f"sha256:{'0' * 64}/../../../../victim/file",
        "sha512:00",
        "",
        5,
    ],
)
def test_digests_are_no_paths(tmp_path: Path, digest: object) -> None:
    import json

    image = image_of(tmp_path, ("a", tarfile.REGTYPE, "x"))
    index = tmp_path / "layout" / "index.json"
    content = json.loads(index.read_text())
    content["manifests"][0]["digest"] = digest
    index.write_text(json.dumps(content))
    with pytest.raises(ScrunError, match="has no digest of SHA-256"):
        manifest_digest(find_image(image.removeprefix("oci:")))
