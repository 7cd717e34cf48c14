"""Root file systems that are plain directories, where the node does not see them."""

import json
import os
import shlex
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scrun.core.errors import EngineError
from scrun.supervisor.contracts.target import Mounting, OthersThere
from scrun.supervisor.staging import staged_bundle
from scrun.supervisor.staging.copies import CopyRoom
from scrun.supervisor.staging.digests import contents, parent_of
from scrun.supervisor.staging.layers import Unusable
from scrun.supervisor.staging.layout import write_difference
from scrun.supervisor.staging.overlaid import Overlays
from scrun.supervisor.staging.stage_out import stage_out
from scrun.supervisor.staging.staged_bundle import why_unseen
from scrun.supervisor.staging.stored import Mounter
from scrun.supervisor.staging.survey import MountPoint
from tests.harness.layers import Image, in_shell, listing

OWN, IMAGE, BASE, CHAIN = (letter * 64 for letter in "abcd")


class Plain(Image):
    """A container of an engine's driver vfs: a copy of its image's directory."""

    def made(self, change: str = ":") -> None:
        folder = self.store.parent / "vfs" / "dir"
        folder.mkdir(parents=True)
        subprocess.run(["cp", "-a", self.layers[2], folder / IMAGE], check=True)
        subprocess.run(["cp", "-a", folder / IMAGE, folder / OWN], check=True)
        self.rootfs = folder / OWN
        self.config = {"root": {"path": str(self.rootfs)}}
        in_shell(change, self.rootfs)
        layers = [
            {"id": OWN, "parent": IMAGE},
            {"id": IMAGE, "parent": BASE, "diff-digest": f"sha256:{1:064x}", "diff-size": 7},
            {"id": BASE, "diff-digest": f"sha256:{2:064x}", "diff-size": 8},
        ]
        records = self.store.parent / "vfs-layers"
        records.mkdir()
        (records / "layers.json").write_text(json.dumps(layers))
        self.mounts = [MountPoint("/", "ext4"), MountPoint(str(self.store.parent), "ext4", "8:1")]

    def recorded_by_docker(self) -> Path:
        """Have docker's records of the same in the place of podman's; return where they are."""
        (self.store.parent / "vfs-layers" / "layers.json").unlink()
        records = self.store.parent / "image" / "vfs" / "layerdb"
        parent = {"mount-id": OWN, "init-id": f"{OWN}-init", "parent": f"sha256:{CHAIN}"}
        layer = {"cache-id": IMAGE, "diff": f"sha256:{1:064x}", "size": "7"}
        for folder, files in ((f"mounts/{7:064x}", parent), (f"sha256/{CHAIN}", layer)):
            (records / folder).mkdir(parents=True)
            for name, text in files.items():
                (records / folder / name).write_text(text)
        return records


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plain]:
    one = Plain(tmp_path, monkeypatch)
    one.with_store = True
    one.by_shim()
    monkeypatch.setattr(staged_bundle, "read_mounts", lambda: one.mounts)
    before = len(os.listdir("/proc/self/fd"))
    yield one
    stage_out(str(one.staged))
    assert len(os.listdir("/proc/self/fd")) == before


# what a container of before has left, and the engine
BEFORE = """
echo other >etc/passwd; rm -r usr/share/doc bin/ash; mkdir -p new/deep usr/share/doc
echo x >new/deep/x; ln -s /else usr/link; chmod 600 etc/hosts; rmdir empty; echo file >empty
rm lib; mkdir lib; echo y >lib/y; chmod 700 bin
"""
DURING = (
    "rm etc/hosts new/deep/x; echo more >>etc/passwd; echo z >usr/z; mkdir -p bin/d/e; echo >lib/q"
)


@pytest.mark.parametrize("rootless", [True, False])
def test_the_node_mounts_a_copy_of_the_image(
    image: Plain, tmp_path: Path, *, rootless: bool
) -> None:
    image.rootless = rootless
    image.made(BEFORE)
    image.hidden(image.store.parent)
    before = listing(image.rootfs)
    staged = image.staged_as("squashfs")
    assert staged.copied_from == str(image.rootfs)
    subprocess.run(["cp", "-a", image.rootfs, tmp_path / "expected"], check=True)
    in_shell(DURING, tmp_path / "expected")
    image.run(f"cp -a . {shlex.quote(str(tmp_path))}/seen; {DURING}")
    assert listing(tmp_path / "seen") == before
    image.end(staged)
    assert listing(image.rootfs) == listing(tmp_path / "expected")


def test_the_next_container_of_the_image_copies_nothing(image: Plain) -> None:
    image.made()
    image.hidden(image.store.parent)
    assert image.stage().image == "squashfs"
    assert image.copied == ["dir"]
    [copied] = image.images.glob("layer-*")
    other = image.another("other")
    try:
        assert other.stage().image == "squashfs"
    finally:
        stage_out(str(other.staged))
    assert list(image.images.glob("layer-*")) == [copied]
    assert image.copied == ["dir"]


def test_what_the_node_sees_is_used_where_it_is(image: Plain) -> None:
    image.made()
    staged = image.stage()
    assert (staged.image, staged.rootfs) == ("", str(image.rootfs))
    assert len(image.mountings) == 1
    assert not image.images.exists()


def test_nobody_is_asked_about_the_mount_of_the_staged_bundle(image: Plain) -> None:
    image.made()
    image.mounts = image.mounts[:1]
    assert image.stage().image == ""
    assert image.mountings == []


def test_what_has_no_record_is_copied(image: Plain) -> None:
    image.made()
    (image.store.parent / "vfs-layers" / "layers.json").unlink()
    image.hidden(image.store.parent)
    staged = image.staged_as("copy")
    assert "are not known: it is not a mount of its own" in staged.notes[0]
    assert "is not there on the node" in staged.notes[1]


def test_one_node_of_two_does_not_see_it(image: Plain) -> None:
    image.made()
    here = f"inode {image.rootfs.stat().st_ino}\n"

    def why_not(ask: Callable[[str], list[str]], mounter: Mounter | None = None) -> str | None:
        overlays = Overlays(ask, "", mounter=mounter)
        return why_unseen(str(image.rootfs), str(image.staged.parent), image.mounts, overlays)

    assert why_not(lambda _: [here, here]) is None
    assert why_not(lambda _: [f"prolog\n{here}", "inode 1\n"])
    assert why_not(lambda _: [here, ""])

    def nobody(script: str) -> list[str]:
        raise Unusable("cannot be asked")

    assert why_not(nobody) is None


@pytest.mark.parametrize(
    ("error", "is_asked", "is_seen"),
    [(None, False, True), (OthersThere([0]), False, False), (EngineError("old"), True, True)],
)
def test_a_shim_looks_for_itself(
    image: Plain, error: Exception | None, is_asked: bool, is_seen: bool
) -> None:
    image.made()
    inode = image.rootfs.stat().st_ino
    asked: list[str] = []
    looked: list[Mounting] = []

    def ask(script: str) -> list[str]:
        asked.append(script)
        return [f"inode {inode}\n"]

    def look(mounting: Mounting) -> str:
        looked.append(mounting)
        if error is not None:
            raise error
        return ""

    overlays = Overlays(ask, "", mounter=Mounter(look, lambda *_: None, lambda: None))
    why = why_unseen(str(image.rootfs), str(image.staged.parent), image.mounts, overlays)
    assert (why is None) is is_seen
    assert bool(asked) is is_asked
    [mounting] = looked
    assert mounting.only_looks
    assert [*mounting.looks] == [(str(image.rootfs), inode, None)]


def test_what_cannot_be_written_to_is_copied(image: Plain) -> None:
    """A socket or device that the image does not have."""
    image.made("mkfifo etc/fifo")
    image.hidden(image.store.parent)
    staged = image.staged_as("copy")
    assert "device, FIFO or socket" in staged.notes[0]


def test_digests_of_records(image: Plain) -> None:
    image.made()
    [content] = contents([str(image.rootfs.with_name(IMAGE))])
    assert content is not None
    assert content.digest == f"vfs sha256:{1:064x} sha256:{2:064x}"
    assert content.size == 15
    assert parent_of(str(image.rootfs)) == str(image.rootfs.with_name(IMAGE))
    assert parent_of("/somewhere/else") is None
    records = image.store.parent / "vfs-layers" / "layers.json"
    for wrong in ("../../etc", "", IMAGE[:-1]):
        records.write_text(json.dumps([{"id": OWN, "parent": wrong}]))
        assert parent_of(str(image.rootfs)) is None
    digest = f"sha256:{1:064x}"
    circle = [{"id": IMAGE, "parent": OWN, "diff-digest": digest}]
    records.write_text(json.dumps([*circle, {"id": OWN, "parent": IMAGE, "diff-digest": digest}]))
    assert contents([str(image.rootfs.with_name(IMAGE))]) == [None]


def test_docker_has_records_of_its_own(image: Plain) -> None:
    image.made("echo other >etc/passwd")
    records = image.recorded_by_docker()
    picture = str(image.rootfs.with_name(IMAGE))
    [content] = contents([picture])
    assert content is not None
    assert content.digest == f"vfs chain {CHAIN}"
    assert parent_of(str(image.rootfs)) == picture
    image.hidden(image.store.parent)
    assert image.stage().image == "squashfs"
    mount = records / "mounts" / f"{7:064x}"
    for wrong in ("", f"sha256:{BASE}", "sha256:../../etc", CHAIN):
        (mount / "parent").write_text(wrong)
        assert parent_of(str(image.rootfs)) is None
    (records / "mounts").chmod(0o777)
    (mount / "parent").write_text(f"sha256:{CHAIN}")
    assert parent_of(str(image.rootfs)) is None


def test_a_difference_follows_no_link(tmp_path: Path) -> None:
    own, other, into = (tmp_path / name for name in ("own", "image", "into"))
    for folder in (own, other, into, tmp_path / "outside"):
        folder.mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    (own / "a").symlink_to(tmp_path / "outside")
    (other / "a").mkdir()
    (other / "b").symlink_to(tmp_path / "outside")
    (own / "b").mkdir()
    write_difference(str(own), str(other), str(into), CopyRoom(), owners=False)
    assert (into / "a").readlink() == tmp_path / "outside"
    assert list((into / "b").iterdir()) == []
    assert stat.S_ISDIR((into / "b").lstat().st_mode)


def test_a_difference_of_too_many_files(tmp_path: Path) -> None:
    own, other, into = (tmp_path / name for name in ("own", "image", "into"))
    for folder in (own, other, into):
        folder.mkdir()
    for name in "abc":
        (own / name).touch()
    with pytest.raises(Unusable, match="too many files"):
        write_difference(str(own), str(other), str(into), CopyRoom(entries=2), owners=False)
