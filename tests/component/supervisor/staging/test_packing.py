"""Squashfs images of layers: made once, mounted by the shim of the node."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from scrun.core.errors import EngineError
from scrun.supervisor.contracts.target import (
    ImageFile,
    Mounting,
    NotThere,
    OthersThere,
    RootRefused,
)
from scrun.supervisor.staging.image_store import PACK, copying
from scrun.supervisor.staging.layers import NO_ROOM
from scrun.supervisor.staging.stage_out import stage_out
from scrun.supervisor.staging.stored import Mounter
from scrun.supervisor.wire.seals import digest
from tests.harness.layers import Image, odd
from tests.harness.shim import PURE_V2, Shim
from tests.harness.users import root
from tests.harness.wait import wait_until

MKSQUASHFS = str(shutil.which("mksquashfs"))
IMAGES = "root: the node mounts squashfs images of the layers of "


class Node:
    """A node, whose shim mounts images; it does not see the engine's layers, nor some folders."""

    def __init__(self, image: Image, tmp_path: Path, *also: Path) -> None:
        image.mounted()
        place: tuple[str, ...] = PURE_V2
        for folder in (image.store, *also):
            folder.mkdir(exist_ok=True)
            hidden = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"')
            place = (*hidden, str(folder), *place)
        self.shim = Shim(tmp_path, root(), {"TMPDIR": str(tmp_path)}, place=place)
        self.images = ""
        self.mounts = 0
        self.fails = ""
        self.sent: list[str] = []
        self.limit = 0
        image.mounter = self.mounter = Mounter(self.mount, self.send, self.unmount)
        image.node = self.ask

    def mount(self, mounting: Mounting) -> str:
        own = mounting.of(0)
        self.mounts += mounting.mounts
        name = f"images-{self.mounts}" if mounting.mounts else ""
        reply = self.shim.call("mount", id=name, **own)
        if own["files"] and self.fails:
            raise EngineError(self.fails)
        if "others" in reply:
            raise OthersThere(reply["others"])
        if "error" in reply:
            why = (
                NotThere
                if reply.get("unseen")
                else RootRefused
                if reply.get("root")
                else EngineError
            )
            raise why(reply["error"])
        self.images = name
        return str(reply["way"])

    def send(self, images: Sequence[tuple[ImageFile, str]], mounting: Mounting) -> None:
        files = [
            (self._send(f"image-{self.mounts}-{number}", image), point)
            for number, (image, point) in enumerate(images)
        ]
        self.mount(msgspec.structs.replace(mounting, files=(files,)))

    def _send(self, one: str, image: ImageFile) -> str:
        words = {"name": image.name, "size": image.size, "limit": self.limit}
        reply = self.shim.call("fetch", id=one, **words)
        if not reply:
            self.sent.append(image.name)
            [stream] = self.shim.streams("image").values()
            content = Path(image.file).read_bytes()
            more = {"stream": stream, "digest": digest(content).hexdigest()}
            number = self.shim.ask("receive", id=one, **more)
            self.shim.write(stream, content)
            reply = self.shim.answer(number)
        if "error" in reply:
            raise EngineError(reply["error"])
        return str(reply["path"])

    def unmount(self) -> None:
        self.shim.call("unmount", id=self.images)
        self.images = ""

    def ask(self, script: str) -> str:
        return str(self.shim.call("script", script=script, images=self.images)["text"])


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Image]:
    one = Image(tmp_path, monkeypatch)
    one.with_store = True
    one.rootless = False
    one.recorded()
    os.mknod(one.layers[1] / "motd", stat.S_IFCHR)
    (one.layers[1] / "usr").mkdir()
    os.setxattr(one.layers[1] / "usr", "trusted.overlay.opaque", b"y")
    (one.layers[1] / "usr/new").write_text("new")
    yield one
    stage_out(str(one.staged))
    temporary = one.images / "tmp"
    assert not temporary.exists() or not os.listdir(temporary)


@pytest.fixture
def node(image: Image, tmp_path: Path) -> Iterator[Node]:
    one = Node(image, tmp_path)
    yield one
    one.shim.end()


def made(image: Image) -> list[str]:
    """What the copies in the store are."""
    return sorted(path.name for path in image.images.glob("layer-*/rootfs*"))


SHOW = """
import json, subprocess
for mount in json.load(open("config.json"))["mounts"]:
    if mount["type"] == "overlay":
        options = ",".join(mount["options"])
        words = ["mount", "-t", "overlay", "overlay", "-o", options]
        subprocess.run([*words, f"rootfs{mount['destination']}"], check=True)
"""


def seen(image: Image, node: Node) -> str:
    """What the container would see."""
    show = image.staged.with_name("show.py")
    show.write_text(SHOW)
    script = f"{sys.executable} {show} && cd rootfs && ls && ls usr && stat -c %a bin/sh"
    return node.ask(f"cd {image.staged} && unshare --mount sh -c '{script}'")


def test_a_second_container_makes_nothing(image: Image, node: Node) -> None:
    first = image.stage()
    assert first.notes[0].startswith(IMAGES), first.notes
    assert first.notes[1] == "root: the images are mounted by squashfs"
    assert first.image == "squashfs"
    assert image.programs == [PACK, PACK]
    assert made(image) == ["rootfs.sqfs"] * 2
    assert image.said[-1] == "image: 1.0 of 2.0 GiB"
    assert seen(image, node).split() == ["bin", "empty", "etc", "lib", "usr", "new", "755"]
    node.unmount()
    stage_out(str(image.staged))
    image.programs.clear()
    assert image.stage().image == "squashfs"
    assert image.programs == []


def test_what_the_node_cannot_mount(image: Image, node: Node) -> None:
    """The container gets a copy, and one line says why."""
    node.fails = "squashfuse: no"
    staged = image.staged_as("copy")
    assert staged.notes[0] == f"root: the layers of {image.rootfs} squashfuse: no"
    assert made(image) == ["rootfs.sqfs"] * 2


def test_no_tool(image: Image, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    staged = image.staged_as("copy")
    why = "cannot be squashfs images: mksquashfs is not installed here"
    assert staged.notes[0] == f"root: the layers of {image.rootfs} {why}"
    assert made(image) == []


def test_a_layer_that_cannot_be_packed(image: Image, node: Node) -> None:
    """The container gets a copy; what was packed before stays for others."""
    with open(image.layers[2] / "etc/holes", "wb") as file:
        file.truncate(1 << 40)
    image.rootfs.joinpath("etc/holes").unlink(missing_ok=True)
    staged = image.staged_as("copy")
    assert "have a file with large holes" in staged.notes[0]
    assert made(image) == ["rootfs.sqfs"]


@pytest.fixture
def far(image: Image, tmp_path: Path) -> Iterator[Node]:
    """A node that does not see the store of images, either."""
    one = Node(image, tmp_path, image.images)
    yield one
    one.shim.end()


def test_images_are_sent_where_the_store_is_not_seen(image: Image, far: Node) -> None:
    for again in (False, True):
        staged = image.staged_as("squashfs")
        way = "squashfs, after they were sent to the node"
        assert staged.notes[1] == f"root: the images are mounted by {way}"
        assert seen(image, far).split() == ["bin", "empty", "etc", "lib", "usr", "new", "755"]
        assert made(image) == ["rootfs.sqfs"] * 2
        assert len(far.sent) == 2
        far.unmount()
        if not again:
            stage_out(str(image.staged))


def test_what_cannot_be_sent(image: Image, far: Node) -> None:
    far.limit = 1
    staged = image.staged_as("copy")
    assert "no room for 0 MiB on the node" in staged.notes[0]
    far.unmount()
    stage_out(str(image.staged))
    image.mounter = None
    staged = image.staged_as("copy")
    assert "nor is the store of images" in staged.notes[0]
    assert "nor can images be sent: only a shim mounts images" in staged.notes[0]


def packing(layer: Path, image: Path, *how: str) -> list[str]:
    return [
        *copying(PACK),
        str(layer),
        str(image),
        *(how or ("user", "7:8", "kernel")),
        MKSQUASHFS,
    ]


def test_an_image_has_what_the_layer_has(tmp_path: Path) -> None:
    layer, image, back = (tmp_path / name for name in ("layer", "image", "back"))
    layer.mkdir()
    odd(layer)
    os.truncate(layer / "sparse", 1 << 20)
    (layer / ("n" * 250)).write_text("long")
    (layer / "far").symlink_to("x" * 200)
    subprocess.run(packing(layer, image, "user", "owners", "kernel"), check=True)
    subprocess.run(["unsquashfs", "-q", "-n", "-d", back, image], check=True)
    assert os.getxattr(back / "opaque", "user.overlay.opaque") == b"y"
    (layer / "socket").unlink()  # archives have none
    for path in sorted(layer.rglob("*")):
        there = back / path.relative_to(layer)
        one, other = path.lstat(), there.lstat()
        names: tuple[str, ...] = ("st_mode", "st_uid", "st_gid", "st_rdev", "st_nlink", "st_size")
        if stat.S_ISDIR(one.st_mode):
            names = names[:3]
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
        assert int(one.st_mtime) == int(other.st_mtime) or path.name == "gone"
        if stat.S_ISREG(one.st_mode):
            assert path.read_bytes() == there.read_bytes()
            assert os.listxattr(path) == os.listxattr(there)
        if path.is_symlink():
            assert path.readlink() == there.readlink()


def test_an_image_for_one_user(tmp_path: Path) -> None:
    layer, image = tmp_path / "layer", tmp_path / "image"
    layer.mkdir()
    odd(layer)
    os.truncate(layer / "sparse", 1 << 20)
    subprocess.run(packing(layer, image), check=True)
    done = subprocess.run(
        ["unsquashfs", "-lln", image], capture_output=True, text=True, errors="replace", check=True
    )
    lines = [line.split() for line in done.stdout.splitlines() if "squashfs-root/" in line]
    assert {line[1] for line in lines} == {"7/8"}
    assert [line[0] for line in lines if line[-1].endswith("/setuid")] == ["-rwx--x--x"]


def test_marks_of_fuse_overlayfs(tmp_path: Path) -> None:
    layer, image, back = (tmp_path / name for name in ("layer", "image", "back"))
    (layer / "d").mkdir(parents=True)
    (layer / ".wh.gone").touch()
    (layer / "d/.wh..wh..opq").touch()
    subprocess.run(packing(layer, image, "trusted", "owners", "fuse"), check=True)
    subprocess.run(["unsquashfs", "-q", "-n", "-d", back, image], check=True)
    assert sorted(os.listdir(back)) == ["d", "gone"]
    assert stat.S_ISCHR((back / "gone").stat().st_mode)
    assert os.getxattr(back / "d", "trusted.overlay.opaque") == b"y"
    assert os.listdir(back / "d") == []


def test_a_deep_layer_is_refused(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    script = "i=0; while [ $i -lt 400 ]; do mkdir d; cd d; i=$((i+1)); done"
    subprocess.run(["/bin/sh", "-ec", script], cwd=layer, check=True)
    command = packing(layer, tmp_path / "image")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "have more than 300 directories within each other\n"


def test_no_room(tmp_path: Path) -> None:
    layer, small = tmp_path / "layer", tmp_path / "small"
    layer.mkdir()
    (layer / "f").write_bytes(os.urandom(4 << 20))
    small.mkdir()
    script = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, str(small)]
    done = subprocess.run(
        [*words, *packing(layer, small / "image")], capture_output=True, text=True, check=False
    )
    assert done.returncode == NO_ROOM, done.stderr
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_is_killed(tmp_path: Path) -> None:
    """Its tool ends with it."""
    layer, image = tmp_path / "layer", tmp_path / "image"
    layer.mkdir()
    for number in range(20):
        (layer / str(number)).write_bytes(os.urandom(8 << 20))
    with subprocess.Popen(packing(layer, image), stdout=subprocess.DEVNULL) as packer:
        wait_until("it packs", image.exists)
        children = Path(f"/proc/{packer.pid}/task/{packer.pid}/children").read_text().split()
        packer.send_signal(signal.SIGKILL)
    assert children
    wait_until("its tool has ended", lambda: not any(map(_is_there, children)))


def _is_there(pid: str) -> bool:
    try:
        return "mksquashfs" in Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return False
