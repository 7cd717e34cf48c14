"""Mounts root file systems: overlays, and images, files of squashfs, that are layers of these.

They are mounted in a mount namespace of their own (`space`), in which the runtime runs as well:
it mounts directories of config.json in the root file system, but crun before 1.22 no root file
system; and there squashfuse may mount without fusermount(1). Root's images are mounted by the
kernel: squashfuse does not show the attributes of root's overlays ("trusted.").
"""

import _signal as signal  # without enum, which takes some ms
import errno
import os

from .files import DIFFER, remove_file
from .json_text import dumps
from .libc import mount
from .loop import READ
from .processes import is_ending, kill_quietly
from .runtime import CallRefused, found, last_line
from .space import Space
from .user_network import way

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .children import Children
    from .containers import Reply
    from .loop import Loop
    from .space import Maps
    from .targets import NodeProcess

_KERNEL = "overlay"
_FUSE = ("squashfuse_ll", "squashfuse")  # the first has several threads
_OVERLAY_BY_FUSE = "fuse-overlayfs"
_OPTIONS = ",writeback=0"  # it may be killed: what is written is to be in its directory
_PATIENCE = 30.0  # seconds
_ENDING = 2.0
_WORDS = 4096
_READ_ONLY = 1  # mount(2)


class Mounted:
    """The mounts of one container.

    Attributes:
        space: Where.
        root: What to give `Space.mount`, if its root file system is an overlay.
        by_fuse: The program that mounts that; "": the kernel does.
        user: Who uses them, once a container does.
        points: The mount points of the images, and of an overlay that has a process.
        running: The processes that mount them, or serve them.
        reply: Called when they are mounted, or cannot be; None afterwards.
        over: Whether they are to go.
        late: The deadline that counts.
    """

    def __init__(self, call: "dict[str, Any]", users: int, reply: "Reply") -> None:
        """Begin to make the namespace for a `mount`; see `Space`."""
        # what is wrong with the call is found before anything is begun
        self.points = {os.path.realpath(point) for _, point in call["files"]}
        self.root = _root_of(call)
        has_network = bool(call.get("network") and way(call)[0])
        around = bool(call.get("users"))
        looks = call["looks"] if around else ()
        self.space = Space(call.get("maps"), users, has_network, around, looks)
        self.by_fuse = ""
        self.user: NodeProcess | None = None
        self.running: set[int] = set()
        self.reply: Reply | None = reply
        self.over = False
        self.late: object = None


class NodeImages:
    """All of them."""

    def __init__(
        self,
        loop: "Loop",
        children: "Children",
        directory: str,
        lost: "Callable[[NodeProcess], None]",
    ) -> None:
        """`lost` gets each container whose images nobody serves any more."""
        self._loop, self._children, self._lost = loop, children, lost
        self._words = os.path.join(directory, "mounting")
        self._mounted: dict[str, Mounted] = {}
        # newuidmap(1) and newgidmap(1) take longer than the mount
        self._users: dict[str, int] = {}

    def mount(self, call: "dict[str, Any]", reply: "Reply", beside: int = 0) -> None:
        """Mount a root file system, or images; without either, tell how images would be.

        Args:
            beside: A process in whose user namespace this is to be; 0: in one of its own.
        """
        files, root = call["files"], call.get("root")
        mine = call.get("mine", False)
        is_apart = root or call.get("users")
        way = _way(mine) if files or not is_apart else _KERNEL
        if not (files or is_apart):
            reply({"way": way})
            return
        for number, (file, _) in enumerate(files):
            why = _why_not(file, call["known"][number] if call.get("known") else None)
            if why:
                reply({"error": f"{file} {why}", "unseen": True})
                return
        by_fuse = _overlay_by_fuse() if call.get("by_fuse") else ""
        if call.get("by_fuse") and not by_fuse:
            why = f"the node has no {_OVERLAY_BY_FUSE} or no /dev/fuse for users"
            reply({"error": why, "root": True})
            return
        command = _command(way)
        if mine and os.geteuid():
            command += _owned_by(call.get("maps"))
        name, key = call["id"], dumps(call.get("maps"))
        if name in self._mounted:
            raise CallRefused(f"{name} is mounted already")
        users = self._users.get(key, -1)
        if beside:
            users = os.open(f"/proc/{beside}/ns/user", os.O_RDONLY)
        try:
            mounted = self._mounted[name] = Mounted(call, users, reply)
        finally:
            if beside:
                os.close(users)
        mounted.by_fuse = by_fuse
        mounted.late = self._loop.after(
            _PATIENCE, lambda: self._fail(name, f"not mounted after {_PATIENCE:g} s")
        )

        def is_there(_: int) -> None:
            self._loop.forget(mounted.space.said)
            try:
                mounted.space.take()
                if mounted.space.others:
                    self._tell(mounted, {"error": DIFFER, "others": mounted.space.others})
                    self.unmount(name)
                    return
                if not beside and key not in self._users:
                    self._users[key] = mounted.space.users()
                if files:
                    go_on = lambda: self._mount_root(name, mounted, way)  # noqa: E731
                    self._when_there(mounted, go_on)
                else:
                    self._mount_root(name, mounted, way)
                for file, point in files:
                    self._begin(name, mounted, [*command, file, point])
            except (OSError, ValueError) as error:
                self._fail(name, str(error))

        self._loop.watch(mounted.space.said, READ, is_there)

    def _begin(
        self, name: str, mounted: Mounted, command: "list[str]", place: "str | None" = None
    ) -> None:
        words = os.open(self._words, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

        def ended(status: int) -> None:
            mounted.running.discard(pid)
            said = last_line(os.pread(words, _WORDS, 0)) or f"status {status}"
            os.close(words)
            self._ended(name, mounted, status, said, root=place is not None)

        remove_file(self._words)  # each one's has no name
        stdio, enter = (None, words, words), mounted.space.enter_to_mount
        try:
            pid = self._children.spawn(command, ended, stdio, place, enter=enter)
        except BaseException:
            os.close(words)
            raise
        mounted.running.add(pid)

    def _when_there(self, mounted: Mounted, go_on: "Callable[[], None]") -> None:
        """Go on when all that has a process is mounted."""

        def look(_: int) -> None:
            if mounted.reply is not None and mounted.points <= mounted.space.points():
                self._loop.forget(mounted.space.mounts)
                go_on()

        self._loop.watch(mounted.space.mounts, 0, look)

    def _mount_root(self, name: str, mounted: Mounted, way: str) -> None:
        """Mount the root file system above the images, if it is asked for, and tell."""

        def is_there(_: int) -> None:
            self._loop.forget(mounted.space.said)
            try:
                mounted.space.check()
            except (OSError, ValueError) as error:
                self._fail(name, str(error), root=True)
            else:
                self._tell(mounted, {"way": way, "root": True})

        if not mounted.root or mounted.by_fuse:
            mounted.space.dismiss()
        if not mounted.root:
            self._tell(mounted, {"way": way})
            return
        if mounted.by_fuse:
            self._serve_root(name, mounted, way)
            return
        self._loop.watch(mounted.space.said, READ, is_there)
        mounted.space.mount(*mounted.root)

    def _serve_root(self, name: str, mounted: Mounted, way: str) -> None:
        """Have fuse-overlayfs mount the root file system, and tell when it is there."""
        point, directory, options = mounted.root
        mounted.points.add(os.path.realpath(point))
        there = {"way": way, "root": True}
        self._when_there(mounted, lambda: self._tell(mounted, there))
        command = [mounted.by_fuse, "-f", "-o", options + _OPTIONS, point]
        self._begin(name, mounted, command, directory)

    def _tell(self, mounted: Mounted, words: "dict[str, Any]") -> None:
        self._loop.cancel(mounted.late)
        if mounted.reply is not None:
            mounted.reply(words)
            mounted.reply = None

    def _ended(self, name: str, mounted: Mounted, status: int, words: str, root: bool) -> None:
        if mounted.over:
            if not mounted.running:
                self._loop.cancel(mounted.late)
                mounted.space.let_go()
        elif mounted.reply is not None and (status or os.geteuid()):
            self._fail(name, words, root)
        elif os.geteuid() and mounted.user is not None:
            self._lost(mounted.user)

    def _fail(self, name: str, why: str, root: bool = False) -> None:
        mounted = self._mounted.get(name)
        if mounted is not None:
            self._tell(mounted, {"error": why, "root": root})
        self.unmount(name)

    def use(self, name: str, user: "NodeProcess") -> Mounted:
        """Let a container use some, which go with it.

        Raises:
            CallRefused: They were not mounted, or are gone.
        """
        mounted = self.of(name)
        mounted.user = user
        if len(mounted.running) < len(mounted.points) and os.geteuid():
            raise CallRefused("its root file system went away")
        return mounted

    def of(self, name: str) -> Mounted:
        """Return some.

        Raises:
            CallRefused: Nothing was mounted by that name.
        """
        if name not in self._mounted:
            raise CallRefused(f"nothing is mounted as {name}")
        return self._mounted[name]

    def are_going(self, mounted: Mounted) -> bool:
        """Tell whether some have no server any more, which may not be reaped yet.

        A program ends with SIGBUS as soon as a page of a file cannot be had.
        """
        return any(map(is_ending, mounted.running))

    def let_go(self, mounted: Mounted) -> None:
        for name, one in list(self._mounted.items()):
            if one is mounted:
                self.unmount(name)

    def unmount(self, name: str) -> None:
        mounted = self._mounted.pop(name, None)
        if mounted is None:
            return
        mounted.over = True
        self._tell(mounted, {"error": "it is no longer wanted"})
        for fd in (mounted.space.said, mounted.space.mounts):
            self._loop.forget(fd)
        self._loop.cancel(mounted.late)
        if not mounted.running:
            mounted.space.let_go()
            return
        for pid in mounted.running:
            kill_quietly(pid, signal.SIGTERM)  # it unmounts, and ends
        mounted.late = self._loop.after(_ENDING, lambda: _kill(mounted))


def _root_of(call: "dict[str, Any]") -> "tuple[str, ...]":
    """Return `root` of a call, three texts or none.

    Raises:
        CallRefused: It is something else.
    """
    root = tuple(call.get("root") or ())
    if len(root) not in (0, 3) or not all(isinstance(text, str) for text in root):
        raise CallRefused(f"{root!r}: not a root file system")
    return root


def _why_not(file: str, known: "list[int] | None") -> str:
    """Return why an image is not the one that is meant, or ""."""
    if not os.access(file, os.R_OK):
        return "is not there"
    status = os.stat(file)
    if known and [status.st_ino, status.st_size, int(status.st_mtime)] != known:
        return "is a different file there"
    return ""


def _way(mine: bool) -> str:
    """Return how images are mounted here.

    Args:
        mine: Whether files shall belong to somebody else than the image says.

    Raises:
        CallRefused: The node can mount none.
    """
    if os.geteuid() == 0:
        if _knows_squashfs() and os.path.exists("/dev/loop-control"):
            return "squashfs"
        raise CallRefused("the node's kernel has no squashfs or no loop devices")
    # squashfuse_ll before 0.2 has no option for it
    for name in _FUSE[1:] if mine else _FUSE:
        path = found(name)
        if path:
            if not os.access("/dev/fuse", os.R_OK | os.W_OK):
                raise CallRefused("the node has no /dev/fuse for users")
            return path
    raise CallRefused("squashfuse is not installed on the node")


def _knows_squashfs() -> bool:
    """Try to mount a directory: /proc/filesystems has a module only when something has been."""
    try:
        mount(b"/", b"/", b"squashfs", _READ_ONLY, None)
    except OSError as error:
        return error.errno == errno.ENOTBLK  # ENODEV: no such file system
    return False


def _overlay_by_fuse() -> str:
    """Return the program that mounts overlays for users, if that can be done here; or ""."""
    may = os.geteuid() != 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)
    return found(_OVERLAY_BY_FUSE) if may else ""


def _command(way: str) -> "list[str]":
    if way == "squashfs":
        return [found("mount") or "/bin/mount", "-t", way, "-o", "loop,ro,nosuid,nodev"]
    return [way, "-f"]


def _owned_by(maps: "Maps | None") -> "list[str]":
    """Return the options of squashfuse so that all files belong to the user."""
    uid, gid = (0, 0) if maps else (os.geteuid(), os.getegid())
    return ["-o", f"uid={uid},gid={gid}"]


def _kill(mounted: Mounted) -> None:
    for pid in mounted.running:
        kill_quietly(pid, signal.SIGKILL)
