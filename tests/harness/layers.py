"""Layers as container engines have them, staged for a node that is this machine."""

import copy
import json
import os
import shlex
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scrun.core.errors import EngineError
from scrun.images.leases import lease_of
from scrun.images.store import Facts
from scrun.supervisor.contracts.staged import OfTask, Staged, config_of_task
from scrun.supervisor.contracts.target import Mounting, NotThere, OthersThere, RootRefused, Target
from scrun.supervisor.staging import staged_bundle
from scrun.supervisor.staging.image_store import ContainerImages, Copier, Full, copying
from scrun.supervisor.staging.layers import NO_ROOM, Unusable
from scrun.supervisor.staging.on_node import SENT, archive_of, sending, unpacking
from scrun.supervisor.staging.overlaid import Overlays
from scrun.supervisor.staging.stage_out import return_changes
from scrun.supervisor.staging.staged_bundle import stage_in
from scrun.supervisor.staging.stored import Mounter
from scrun.supervisor.staging.survey import MountPoint

AS_ROOT = ("unshare", "--mount", "/bin/sh", "-ec")
ROOTLESS = ("unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-ec")


def in_shell(script: str, place: Path) -> None:
    subprocess.run(["/bin/sh", "-ec", script], cwd=place, check=True)


def ask(script: str) -> str:
    """Do what the node does."""
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def listing(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what is in a tree, but for the times of directories."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content: object = path.readlink() if path.is_symlink() else None
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        found[str(path.relative_to(root))] = (status.st_mode, status.st_uid, content)
    return found


def run_program(name: str, words: Sequence[str], tell: Callable[[int], None]) -> None:
    """Do what a supervisor does to make an image of a layer."""
    done = subprocess.run([*copying(name), *words], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        tell(int(line))
    if done.returncode:
        kind = Full if done.returncode == NO_ROOM else Unusable
        raise kind(done.stderr.splitlines()[-1])


def stage_elsewhere(
    config: dict[str, Any], bundle: str, staged: str, overlays: Overlays, *, rootless: bool
) -> Staged:
    """Stage a bundle for another machine."""
    target = Target(
        elsewhere=True,
        uid=os.getuid(),
        gid=os.getgid(),
        rootless=rootless,
        link_rootfs=True,
        host_only=(),
    )
    return stage_in(config, bundle, staged, target, overlays=overlays)


class Image:
    """Layers, and what an engine has mounted of them; staged for a node that is this machine."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = base / "store" / "overlay"  # as podman has it
        self.layers = [self.store / name / "diff" for name in ("mine", "above", "below")]
        for layer in self.layers:
            layer.mkdir(parents=True)
        lower = self.layers[2]
        for folder in ("etc", "bin", "empty", "usr/share/doc"):
            (lower / folder).mkdir(parents=True)
        for name in ("etc/passwd", "etc/hosts", "bin/sh", "usr/share/doc/one", "motd"):
            (lower / name).write_text(name)
        (lower / "bin/sh").chmod(0o755)
        (lower / "bin/ash").symlink_to("sh")
        (lower / "lib").symlink_to("usr/share")
        self.rootfs = self.store / "id" / "merged"
        self.staged = base / "staged"
        self.cache = base / "cache" / "layers.json"
        self.asked: list[str] = []
        self.node = ask
        self.images = base / "images"
        self.with_store = False
        self.container = "c"
        self.ended = False
        self.limit = 0
        self.mounter: Mounter | None = None
        self.roots: Sequence[tuple[str, str, str]] = ()
        self.files: Sequence[tuple[str, str]] = ()
        self.mountings: list[Mounting] = []
        self._hidden: Sequence[str] = ()
        self._refused = False
        self.node_by_fuse = False
        self.also: list[str] = []
        self.copied: list[str] = []
        self.programs: list[str] = []
        self.said: list[str] = []
        self.rootless = True
        self.tasks = 1
        self.known: set[Any] | None = None
        self.mount_points: list[str] = []
        self.more_options = ""
        self._base = base
        self._monkeypatch = monkeypatch
        self.config: dict[str, Any] = {"root": {"path": str(self.rootfs)}}

    def mounted(self) -> None:
        """Have the root file system mounted: here it is a copy of what an overlay would show."""
        options = ",".join(
            [
                f"lowerdir={':'.join(f'{layer.parent.name}/diff' for layer in self.layers[1:])}",
                f"upperdir={self.layers[0]}",
                f"workdir={self._base}/work",
                *(["userxattr"] if self.rootless else []),
            ]
        )
        self._show(options)
        mount = MountPoint(str(self.rootfs), "overlay", options=options + self.more_options)
        self._is_mounted(mount)

    def _is_mounted(self, mount: MountPoint) -> None:
        here = [MountPoint("/", "ext4"), mount]
        self._monkeypatch.setattr(staged_bundle, "read_mounts", lambda: here)

    def by_fuse(self, upper: str) -> None:
        """Have it mounted by fuse-overlayfs, which shows the lowest layer changed by a script."""
        (self.rootfs.parent / "diff").mkdir(parents=True)
        (self.store / "l").mkdir()
        for layer in self.layers[1:]:
            (self.store / "l" / layer.parent.name).symlink_to(f"../{layer.parent.name}/diff")
        lower = ":".join(f"l/{layer.parent.name}" for layer in self.layers[1:])
        (self.rootfs.parent / "lower").write_text(lower)
        subprocess.run(["cp", "-a", self.layers[2], self.rootfs], check=True)
        in_shell(upper, self.rootfs)
        self._is_mounted(MountPoint(str(self.rootfs), "fuse.fuse-overlayfs", options="rw"))

    def _show(self, options: str) -> None:
        self.rootfs.mkdir(parents=True)
        (self._base / "work").mkdir()
        copy = f"{self._base}/copy"
        show = f"{_mounting(options, 'id/merged')}; cp -a id/merged/. {copy}"
        (self._base / "copy").mkdir()
        in_shell(shlex.join((*AS_ROOT, show)), self.store)
        self.rootfs.rmdir()
        (self._base / "copy").rename(self.rootfs)

    def another(self, name: str) -> "Image":
        """Return the same image, to be staged elsewhere."""
        other = copy.copy(self)
        other.staged = self._base / name
        other.copied, other.said, other.asked, other.programs = [], [], [], []
        if self.mounter is not None:
            other.by_shim()
        other.mountings = []
        other.config = {"root": {"path": str(self.rootfs)}}
        return other

    def staged_as(self, how: str) -> Staged:
        """Stage the bundle; hold how the nodes get the root file system."""
        staged = self.stage()
        assert staged.image == how, staged.notes
        return staged

    def stage(self) -> Staged:
        def remember(script: str) -> list[str]:
            self.asked.append(script)
            return [self.node(script) for _ in range(self.tasks or 2)]

        images = None
        if self.with_store:
            copier = Copier(self._copy, lambda text, _=None: self.said.append(text), self.wait)
            lease = lease_of(str(self._base), self.container)
            images = ContainerImages(str(self.images), lease, copier, self.limit, self.also)
        overlays = Overlays(
            remember,
            str(self.cache),
            images,
            tasks=self.tasks,
            mount_points=self.mount_points,
            mounter=self.mounter,
            mounted=set() if self.known is None else self.known,
        )
        base, staged = str(self._base), str(self.staged)
        return stage_elsewhere(self.config, base, staged, overlays, rootless=self.rootless)

    def _copy(self, name: str, words: Sequence[str], tell: Callable[[int], None]) -> None:
        self.copied.append(Path(words[0]).parent.name)
        self.programs.append(name)
        run_program(name, words, tell)

    def wait(self) -> None:
        """Called while another one copies; raises when its container has been ended."""
        if self.ended:
            raise KeyboardInterrupt

    def by_shim(self, *, refused: bool = False) -> None:
        """Have the node mount images, and the root file system as one overlay, as a shim does.

        Args:
            refused: Whether its kernel refuses to; fuse-overlayfs does it then.
        """
        self._refused = refused

        def nothing() -> None:
            self.roots = self.files = ()

        def send(*_: object) -> None:
            raise EngineError("nothing is sent")

        self.mounter = Mounter(self._mount, send, nothing)

    def _mount(self, mounting: Mounting) -> str:
        self.mountings.append(mounting)
        others = [
            number
            for number, (path, inode, seconds) in enumerate(mounting.looks)
            if self._is_hidden(path)
            or (status := os.stat(path)).st_ino != inode
            or seconds not in (None, status.st_mtime_ns // 10**9)
        ]
        if others:
            raise OthersThere(others)
        files = mounting.files[0]
        if any(self._is_hidden(file) for file, _ in files):
            raise NotThere("it is not there")
        self.files = files
        if self._refused and not mounting.by_fuse:
            raise RootRefused("mount: Invalid argument")
        self.node_by_fuse = mounting.by_fuse
        before = ROOTLESS if self.rootless else AS_ROOT
        try:
            for root in mounting.roots:
                subprocess.run(self._with_images([*before, self._mounting(root)]), check=True)
        except subprocess.CalledProcessError as error:
            raise RootRefused(str(error)) from error
        self.roots = mounting.roots
        return "overlay"

    def _is_hidden(self, path: str) -> bool:
        return os.path.realpath(path).startswith(tuple(self._hidden))

    def _with_images(self, command: Sequence[str]) -> Sequence[str]:
        """Return the command with the images mounted where it runs, and nowhere else."""
        mounts = [
            shlex.join(("mount", "-t", "squashfs", "-o", "loop,ro", file, point))
            for file, point in self.files
        ]
        return [*AS_ROOT, "; ".join([*mounts, shlex.join(command)])] if mounts else command

    def _mounting(self, root: tuple[str, str, str]) -> str:
        """Return what mounts a root file system, until the shell ends."""
        if not self.node_by_fuse:
            return _mounting_root(*root)
        point, directory, options = map(shlex.quote, root)
        mount = f"exec fuse-overlayfs -f -o {options} {point} 2>/dev/null"
        is_there = f"grep -q ' {point} ' /proc/self/mountinfo"
        return (
            f"trap 'cd / && umount {point} && wait' EXIT; (cd {directory} && {mount}) & "
            f"until {is_there}; do kill -0 $! && sleep 0.01; done"
        )

    def hidden(self, *folders: Path) -> None:
        """Hide directories from the node."""
        self._hidden = [f"{path}" for path in folders]
        over = "; ".join(f"mount -t tmpfs none {shlex.quote(str(path))}" for path in folders)
        self.node = lambda script: ask(shlex.join([*AS_ROOT[:3], "-c", f"{over}; {script}"]))

    def unseen(self) -> None:
        """Have the root file system mounted, and the engine's storage hidden from the node."""
        self.mounted()
        self.hidden(self.store)

    def recorded(self) -> None:
        """Write podman's records of the layers of images."""
        layers = [
            {"id": path.parent.name, "diff-digest": f"sha256:{number:064x}", "diff-size": 1 << 30}
            for number, path in enumerate(self.layers[1:])
        ]
        folder = self.store.parent / "overlay-layers"
        folder.mkdir()
        (folder / "layers.json").write_text(json.dumps(layers))

    def run(self, script: str, own: OfTask | None = None) -> None:
        """Run a script in the root directory of the container, or of a task of it."""
        time.sleep(0.02)  # the grain of the kernel's file times is some milliseconds
        config = json.loads((self.staged / "config.json").read_bytes())
        if own is not None:
            config = config_of_task(config, str(self.staged), own)
        mounts = [
            _mounting(",".join(each["options"]), f"rootfs{each['destination']}")
            for each in config.get("mounts") or []
            if each["type"] == "overlay"
        ]
        mounts += [
            self._mounting(root)
            for root in self.roots
            if own is None or os.path.basename(own.place) in root[2]
        ]
        whole = "; ".join([f"cd {self.staged}", *mounts, "cd rootfs", script])
        command = [*(ROOTLESS if self.rootless else AS_ROOT), whole]
        subprocess.run(self._with_images(command), check=True)

    def end(self, staged: Staged) -> None:
        """Bring back what was changed, from the node if it is there."""
        uppers = []
        places = [staged.place] if staged.place else []
        scripts = [sending(place, self._archive(0), rootless=self.rootless) for place in places]
        places += [task.place for task in staged.tasks if task.last]
        scripts += [task.last for task in staged.tasks if task.last]
        for number, (place, script) in enumerate(zip(places, scripts, strict=True)):
            said = ask(script)
            assert said.splitlines()[-1] == SENT, said
            assert not os.path.exists(place)
            (into := self._base / f"written-{number}").mkdir()
            command = unpacking(self._archive(number), str(into), owners=not self.rootless)
            subprocess.run(command, check=True)
            uppers.append(str(into / "upper"))
        return_changes(
            staged.bundle, staged.copied_from, privileged=not self.rootless, uppers=uppers
        )

    def _archive(self, task: int) -> str:
        return archive_of(str(self.staged), task)


def _mounting(options: str, point: str) -> str:
    # mount(8) as of 2.39 gives the kernel the options one by one, which may have 256 bytes then
    once = ("env", "LIBMOUNT_FORCE_MOUNT2=always")
    return shlex.join((*once, "mount", "-t", "overlay", "overlay", "-o", options, point))


def _mounting_root(point: str, directory: str, options: str) -> str:
    return f"(cd {shlex.quote(directory)} && {_mounting(options, point)})"


def filled(folder: str, size: int) -> Facts:
    """Make an image of some bytes in the store."""
    (Path(folder) / "rootfs").mkdir()
    (Path(folder) / "rootfs/f").write_bytes(bytes(size))
    return Facts(source="test")


# cap_net_raw+ep, version 2
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")


def odd(layer: Path) -> None:
    """Fill a layer with all that layers can have."""
    folder = os.fsencode(layer)
    os.mkdir(folder + b"/\xff\xfe")
    with open(folder + b"/\xff\xfe/\x80", "wb") as file:
        file.write(b"not UTF-8")
    (layer / "new\nline").write_text("x")
    (layer / "setuid").write_text("x")
    os.chown(layer / "setuid", 33, 44)
    (layer / "setuid").chmod(0o6711)
    (layer / "closed").mkdir(mode=0o700)
    (layer / "closed/f").write_text("secret")
    (layer / "closed/f").chmod(0)
    (layer / "closed").chmod(0)
    os.link(layer / "setuid", layer / "twice")
    os.link(layer / "setuid", layer / "closed/three")
    os.mkfifo(layer / "fifo", 0o622)
    os.mknod(layer / "device", stat.S_IFCHR | 0o640, os.makedev(1, 3))
    os.mknod(layer / "gone", stat.S_IFCHR)
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(layer / "socket"))
    (layer / "link").symlink_to("/etc/passwd")
    os.chown(layer / "link", 33, 44, follow_symlinks=False)
    os.setxattr(layer / "setuid", "user.note", b"kept")
    os.setxattr(layer / "setuid", "security.capability", CAPABILITY)
    (layer / "opaque").mkdir()
    os.setxattr(layer / "opaque", "trusted.overlay.opaque", b"y")
    (layer / "sparse").touch()
    os.truncate(layer / "sparse", 5 << 40)
    for path in (layer / "link", layer / "new\nline", layer / "opaque", layer):
        os.utime(path, ns=(10**9, 2 * 10**9 + 7), follow_symlinks=False)


def everything(tree: Path) -> dict[bytes, object]:
    """Return all that a copy keeps of what is in a tree."""
    found: dict[bytes, object] = {}
    root = os.fsencode(tree)
    one_file: dict[int, set[bytes]] = {}
    for folder, folders, files in os.walk(root):
        for path in (os.path.join(folder, name) for name in (*folders, *files)):
            status = os.lstat(path)
            name = os.path.relpath(path, root)
            own = [status.st_mode, status.st_uid, status.st_gid, status.st_rdev]
            names = one_file.setdefault(status.st_ino, set())
            names.add(name)
            found[name] = [
                *own,
                names,
                {one: os.getxattr(path, one, follow_symlinks=False)
                 for one in os.listxattr(path, follow_symlinks=False)},
                status.st_mtime_ns if name != b"gone" else 0,
                status.st_size if not stat.S_ISDIR(status.st_mode) else 0,
                Path(os.fsdecode(path)).read_bytes()
                if stat.S_ISREG(status.st_mode) and status.st_blocks else b"",
                os.readlink(path) if stat.S_ISLNK(status.st_mode) else b"",
            ]  # fmt: skip
    return found
