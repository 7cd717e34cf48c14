"""A user's own squashfs file as root file system: mounted, or unpacked in the store or a copy."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from scrun.core.errors import EngineError, StagingError
from scrun.images.leases import lease_of
from scrun.images.store import Entry, Store
from scrun.pull.get import Request, get
from scrun.pull.reference import parse
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.target import ImageFile, Mounting, NotThere
from scrun.supervisor.staging.image_store import UNPACK, ContainerImages, Copier, copying
from scrun.supervisor.staging.layers import NO_ROOM
from scrun.supervisor.staging.overlaid import Overlays
from scrun.supervisor.staging.stage_out import stage_out
from scrun.supervisor.staging.stored import Mounter
from tests.harness.layers import ask, run_program, stage_elsewhere
from tests.harness.places import mounted


class File:
    """A file, and what a node does with it.

    Attributes:
        fails: Why the node mounts nothing.
        mounts: What it was asked to mount.
        programs: What was run here.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.tree = base / "tree"
        (self.tree / "etc").mkdir(parents=True)
        (self.tree / "etc" / "environment").write_text("A=b\n")
        (self.tree / "etc" / "f").write_text("old\n")
        self.path = base / "x.sqsh"
        self.pack()
        self.fails = ""
        self.mounts: list[Mounting] = []
        self.programs: list[str] = []
        self.mounter: Mounter | None = Mounter(self._mount, self._send, lambda: None)
        self.sent: list[ImageFile] = []
        self.unseen = False
        self.staged = base / "staged"
        self.with_store = True

    def pack(self) -> None:
        """Make the file anew."""
        self.path.unlink(missing_ok=True)
        words: list[str | Path] = ["mksquashfs", self.tree, self.path, "-quiet", "-no-progress"]
        subprocess.run(words, check=True)

    def get(self) -> Entry:
        """Get it into the store."""
        store = Store(str(self.base / "images"))
        request = Request(store, 0, lambda *_: None, False, lambda _: None, mounts=True)
        return get(parse(str(self.path)), request)

    def _mount(self, mounting: Mounting) -> str:
        if mounting.files[0]:
            self.mounts.append(mounting)
            if self.fails:
                raise EngineError(self.fails)
            if self.unseen and mounting.known:
                raise NotThere("it is not there")
            for file, point in mounting.files[0]:
                subprocess.run(["unsquashfs", "-q", "-n", "-f", "-d", point, file], check=True)
        return "squashfuse"

    def _send(self, images: Sequence[tuple[ImageFile, str]], mounting: Mounting) -> None:
        self.sent += [image for image, _ in images]
        files = [(image.file, point) for image, point in images]
        self._mount(msgspec.structs.replace(mounting, files=(files,)))

    def _copy(self, name: str, words: Sequence[str], tell: Callable[[int], None]) -> None:
        self.programs.append(name)
        run_program(name, words, tell)

    def stage(self, entry: Entry, **more: object) -> Staged:
        images = None
        if self.with_store:
            copier = Copier(self._copy, lambda *_: None, lambda: None)
            images = ContainerImages(
                str(self.base / "images"), lease_of(str(self.base), "c"), copier
            )
        overlays = Overlays(
            lambda script: [ask(script)],
            str(self.base / "layers.json"),
            images,
            mounter=self.mounter,
        )
        config = {"root": {"path": "rootfs"}, **more}
        return stage_elsewhere(config, entry.directory, str(self.staged), overlays, rootless=False)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


def keys(file: File) -> list[str]:
    """What the store has: links to files, or files."""
    return sorted(
        "link" if (path / "rootfs.sqfs").is_symlink() else "files"
        for path in (file.base / "images").glob("file-*")
    )


def test_it_is_mounted(file: File) -> None:
    staged = file.stage(entry := file.get())
    assert staged.image == "squashfs"
    assert staged.notes == (
        f"root: the node mounts {file.path} by squashfuse; changes are not kept",
    )
    status = file.path.stat()
    [mounting] = file.mounts
    assert mounting.mine
    assert mounting.known == [(status.st_ino, status.st_size, int(status.st_mtime))]
    assert mounting.files[0][0][0] == str(file.path)
    assert entry.facts.defaults.env[-1] == "A=b"
    assert keys(file) == ["link"]
    assert file.programs == []


def test_it_is_sent(file: File) -> None:
    """Its name there is that of its content: two files may have the same size and time."""
    file.unseen = True
    staged = file.stage(entry := file.get())
    assert staged.image == "squashfs"
    assert "after they were sent to the node" in staged.notes[0]
    [image] = file.sent
    assert image.name.startswith(f"{entry.key}.")
    assert file.mounts[-1].known == ()


@pytest.mark.parametrize("why", ["only a shim mounts images", "squashfuse: no"])
def test_it_is_unpacked_once(file: File, why: str) -> None:
    if why == "squashfuse: no":
        file.fails = why
    else:
        file.mounter = None
    entry = file.get()
    for _ in range(2):
        staged = file.stage(entry)
        assert staged.image == "store"
        note = f"root: the node mounts {file.path}, unpacked: {why}; changes are not kept"
        assert staged.notes == (note,)
        stage_out(str(file.staged))
    assert file.programs == [UNPACK]
    assert keys(file) == ["files", "link"]
    [unpacked] = (file.base / "images").glob("*-files")
    assert (unpacked / "rootfs/etc/f").read_text() == "old\n"


def test_there_is_no_store(file: File) -> None:
    file.with_store = False
    staged = file.stage(file.get())
    assert staged.image == "copy"
    assert (file.staged / "rootfs/etc/f").read_text() == "old\n"


def test_it_is_changed_meanwhile(file: File) -> None:
    entry = file.get()
    (file.tree / "etc/f").write_text("new\n")
    file.pack()
    staged = file.stage(entry)
    assert staged.image == "copy"
    assert "the file was replaced while the container was made" in staged.notes[0]
    assert (file.staged / "rootfs/etc/f").read_text() == "new\n"
    assert file.mounts == []


def test_it_is_removed_meanwhile(file: File) -> None:
    entry = file.get()
    file.path.unlink()
    with pytest.raises(StagingError, match=r"cannot be unpacked: .*x\.sqsh") as caught:
        file.stage(entry)
    assert "\n" not in str(caught.value)
    assert not file.staged.exists()


def test_mount_points_of_what_is_read_only(file: File) -> None:
    """Those that are there stay as they are, without unpacking anything else."""
    (file.tree / "etc" / "deep").mkdir(mode=0o755)
    (file.tree / "etc" / "deep").chmod(0o511)
    (file.tree / "etc" / "link").symlink_to("deep")
    file.pack()
    mounts = [
        {"destination": path, "type": "bind", "source": "/proc", "options": ["bind"]}
        for path in ("/etc/deep/a/b", "/etc/link/c", "/new/d", "/etc/../x")
    ]
    root = {"path": "rootfs", "readonly": True}
    staged = file.stage(file.get(), root=root, mounts=mounts)
    assert staged.image == "squashfs"
    upper = file.staged / "overlay" / "upper"
    made = sorted(str(path.relative_to(upper)) for path in upper.rglob("*"))
    assert made == ["etc", "etc/deep", "etc/deep/a", "etc/deep/a/b", "new", "new/d"]
    assert (upper / "etc/deep").stat().st_mode & 0o777 == 0o511


def unpack(file: Path, target: Path, **more: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run the program that unpacks."""
    command = [*copying(UNPACK), str(file), str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


def test_there_is_no_room(file: File, tmp_path: Path) -> None:
    (file.tree / "big").write_bytes(os.urandom(2 << 20))
    file.pack()
    with mounted(small := tmp_path / "small", "-o", "size=1m"):
        done = unpack(file.path, small / "x")
    assert (done.returncode, done.stderr) == (
        NO_ROOM,
        f"cannot be unpacked: {file.path}: no room\n",
    )


def test_there_is_no_unsquashfs(file: File, tmp_path: Path) -> None:
    done = unpack(file.path, tmp_path / "x", env={"PATH": os.path.dirname(sys.executable)})
    assert (done.returncode, done.stderr) == (
        1,
        "cannot be unpacked: unsquashfs is not installed here\n",
    )


def test_it_is_cut_short(file: File, tmp_path: Path) -> None:
    file.path.write_bytes(file.path.read_bytes()[:100])
    done = unpack(file.path, tmp_path / "x")
    assert done.returncode == 1
    assert done.stderr.startswith(f"cannot be unpacked: {file.path}: ")
    assert done.stderr.count("\n") == 1
