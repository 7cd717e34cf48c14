"""Images of somebody who means no good: nothing outside of the store is written or read."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from scrun.core.errors import ScrunError
from scrun.images.store import Store
from scrun.oci.image import find_image
from scrun.pull.get import Request, get
from scrun.pull.layout import manifest_digest
from scrun.pull.reference import parse


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").write_text("mine")
    return folder


def image_of(base: Path, *entries: tuple[str, bytes, str]) -> str:
    """Make an image of one layer: name, type and target or content of each entry."""
    layer = base / "layer.tar"
    with tarfile.open(layer, "w") as archive:
        for name, kind, text in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o755
            if kind == tarfile.REGTYPE:
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
                continue
            member.linkname = text
            member.devmajor, member.devminor = 1, 5
            archive.addfile(member)
    layout = base / "layout"

    def umoci(*words: str) -> None:
        subprocess.run(["umoci", *words], check=True, capture_output=True)

    umoci("init", "--layout", str(layout))
    umoci("new", "--image", f"{layout}:one")
    umoci("raw", "add-layer", "--image", f"{layout}:one", str(layer))
    return f"oci:{layout}:one"


def unpacked(base: Path, image: str) -> "Path | None":
    said: list[str] = []
    store = Store(str(base / "store"))
    try:
        entry = get(parse(image), Request(store, 0, said.append, shown=False, warn=said.append))
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
    ],
)
def test_nothing_outside_is_touched(
    tmp_path: Path, victim: Path, entries: list[tuple[str, bytes, str]]
) -> None:
    named = [(name, kind, text.replace("VICTIM", str(victim))) for name, kind, text in entries]
    unpacked(tmp_path, image_of(tmp_path, *named))
    assert os.listdir(victim) == ["file"]
    assert (victim / "file").read_text() == "mine"
    assert (victim / "file").stat().st_nlink == 1


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


@pytest.mark.parametrize("digest", ["sha256:../../../../victim/file", "sha512:00", "", 5])
def test_digests_are_no_paths(tmp_path: Path, digest: object) -> None:
    import json

    image = image_of(tmp_path, ("a", tarfile.REGTYPE, "x"))
    index = tmp_path / "layout" / "index.json"
    content = json.loads(index.read_text())
    content["manifests"][0]["digest"] = digest
    index.write_text(json.dumps(content))
    with pytest.raises(ScrunError, match="has no digest of SHA-256"):
        manifest_digest(find_image(image.removeprefix("oci:")))
