"""Mounts images, files of squashfs, for containers to have as layers.

They are mounted in a mount namespace of their own, in which the runtime runs as well. It goes when
nobody holds it any more, so nothing stays on the node however the shim ends. An ordinary user's is
in a user namespace that has this one user, by the same number: there squashfuse may mount without
fusermount(1), and the runtime finds itself where it was. Root's are mounted by the kernel:
squashfuse does not show the attributes of root's overlays ("trusted.").
"""

import ctypes
import os
import signal
import struct

from .files import remove_file
from .processes import kill_quietly
from .runtime import found
from .words import Refused, last_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .children import Children
    from .containers import Reply
    from .loop import Loop
    from .targets import Target

_FUSE = ("squashfuse_ll", "squashfuse")  # the first has several threads
_PATIENCE = 30.0  # seconds
_ENDING = 2.0
_WORDS = 4096
_NEWNS, _NEWUSER = 0x20000, 0x10000000
_REC, _SLAVE = 0x4000, 0x80000
_DUMPABLE, _AMBIENT, _RAISE = 4, 47, 2
_VERSION_3, _SYS_ADMIN = 0x20080522, 21

_libc = ctypes.CDLL(None, use_errno=True)


class Space:
    """A mount namespace, and a user namespace unless we are root; open as long as this is held."""

    def __init__(self) -> None:
        """Make it, in a child that ends then.

        Raises:
            OSError: The kernel refuses.
            Refused: Likewise.
        """
        here, there = os.pipe()
        wait, go_on = os.pipe()
        self._fds: list[int] = []
        pid = os.fork()
        if pid == 0:
            _be_apart(there, wait, (here, go_on))
        os.close(there)
        os.close(wait)
        try:
            said = os.read(here, _WORDS)
            if said:
                raise Refused(said.decode(errors="replace").strip())
            for name in ("mnt",) if os.geteuid() == 0 else ("user", "mnt"):
                self._fds.append(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY))
            self.mounts = os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY)
        except OSError:
            self._close_all()
            raise
        finally:
            os.close(here)
            os.close(go_on)

    def enter(self) -> None:
        """Be in it; for a child before it becomes a program."""
        for fd in self._fds:
            _checked(_libc.setns(fd, 0), "setns")

    def enter_to_mount(self) -> None:
        """Be in it, as one that may mount; likewise."""
        self.enter()
        if os.geteuid() == 0:
            return
        head = struct.pack("Ii", _VERSION_3, 0)
        sets = ctypes.create_string_buffer(24)
        _checked(_libc.capget(head, sets), "capget")
        words = list(struct.unpack("6I", sets.raw))
        words[2] |= 1 << _SYS_ADMIN  # inheritable, as the kernel wants it
        _checked(_libc.capset(head, struct.pack("6I", *words)), "capset")
        _prctl(_AMBIENT, _RAISE, _SYS_ADMIN)

    def points(self) -> "set[str]":
        """Return where something is mounted in it."""
        os.lseek(self.mounts, 0, os.SEEK_SET)
        with open(os.dup(self.mounts), errors="surrogateescape") as file:
            return {line.split(" ", 5)[4] for line in file}

    def let_go(self) -> None:
        """Hold it no longer."""
        os.close(self.mounts)
        self._close_all()

    def _close_all(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class Mounted:
    """Images that are mounted together, for one container.

    Attributes:
        space: Where.
        user: Who uses them, once a container does.
        points: The mount points.
        running: The processes that mount them, or serve them.
        reply: Called when they are mounted, or cannot be; None afterwards.
        over: Whether they are to go.
        late: The deadline that counts.
    """

    def __init__(self, points: "set[str]", reply: "Reply") -> None:
        """Make the namespace.

        Raises:
            OSError: The kernel refuses.
        """
        self.space = Space()
        self.user: Target | None = None
        self.points = points
        self.running: set[int] = set()
        self.reply: Reply | None = reply
        self.over = False
        self.late: object = None


class Images:
    """All of them."""

    def __init__(
        self,
        loop: "Loop",
        children: "Children",
        directory: str,
        lost: "Callable[[Target], None]",
    ) -> None:
        """Have none.

        Args:
            loop: What waits.
            children: What starts and reaps.
            directory: The shim's directory.
            lost: Called with a container whose images nobody serves any more.
        """
        self._loop, self._children, self._lost = loop, children, lost
        self._words = os.path.join(directory, "mounting")
        self._mounted: dict[str, Mounted] = {}

    def mount(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Mount images; or, without any, tell how they would be."""
        way = _way()
        files = call["files"]
        if not files:
            reply({"way": way})
            return
        for file, _ in files:
            if not os.access(file, os.R_OK):
                reply({"error": f"{file} is not there", "unseen": True})
                return
        points = {os.path.realpath(point) for _, point in files}
        mounted = self._mounted[call["id"]] = Mounted(points, reply)
        mounted.late = self._loop.after(
            _PATIENCE, lambda: self._fail(call["id"], f"not mounted after {_PATIENCE:g} s")
        )
        self._loop.watch(mounted.space.mounts, 0, lambda _: self._look(mounted, way))
        try:
            for file, point in files:
                self._begin(call["id"], mounted, [*_command(way), file, point])
        except OSError as error:
            self._fail(call["id"], str(error))

    def _begin(self, name: str, mounted: Mounted, command: "list[str]") -> None:
        words = os.open(self._words, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

        def ended(status: int) -> None:
            mounted.running.discard(pid)
            self._ended(name, mounted, status, last_line(os.pread(words, _WORDS, 0)))
            os.close(words)

        remove_file(self._words)  # each one's has no name
        stdio, enter = (None, words, words), mounted.space.enter_to_mount
        try:
            pid = self._children.spawn(command, ended, stdio, enter=enter)
        except BaseException:
            os.close(words)
            raise
        mounted.running.add(pid)

    def _look(self, mounted: Mounted, way: str) -> None:
        """Tell when all are there."""
        if mounted.reply is None or not mounted.points <= mounted.space.points():
            return
        self._loop.forget(mounted.space.mounts)
        self._loop.cancel(mounted.late)
        mounted.reply({"way": way})
        mounted.reply = None

    def _ended(self, name: str, mounted: Mounted, status: int, words: str) -> None:
        if mounted.over:
            if not mounted.running:
                self._loop.cancel(mounted.late)
                mounted.space.let_go()
        elif mounted.reply is not None and (status or os.geteuid()):
            self._fail(name, words or f"status {status}")
        elif os.geteuid() and mounted.user is not None:
            self._lost(mounted.user)

    def _fail(self, name: str, why: str) -> None:
        mounted = self._mounted.get(name)
        if mounted is not None and mounted.reply is not None:
            mounted.reply({"error": why})
            mounted.reply = None
        self.unmount(name)

    def use(self, name: str, user: "Target") -> Mounted:
        """Have a container use some, which go with it.

        Raises:
            Refused: There are none, or not any more.
        """
        mounted = self.of(name)
        mounted.user = user
        if len(mounted.running) < len(mounted.points) and os.geteuid():
            raise Refused("its root file system went away")
        return mounted

    def of(self, name: str) -> Mounted:
        """Return some.

        Raises:
            Refused: There are none.
        """
        if name not in self._mounted:
            raise Refused(f"there are no images {name}")
        return self._mounted[name]

    def let_go(self, mounted: Mounted) -> None:
        """Have those of a container go."""
        for name, one in list(self._mounted.items()):
            if one is mounted:
                self.unmount(name)

    def unmount(self, name: str) -> None:
        """Have some go, if they are there."""
        mounted = self._mounted.pop(name, None)
        if mounted is None:
            return
        mounted.over = True
        self._loop.forget(mounted.space.mounts)
        self._loop.cancel(mounted.late)
        if not mounted.running:
            mounted.space.let_go()
            return
        for pid in mounted.running:
            kill_quietly(pid, signal.SIGTERM)  # it unmounts, and ends
        mounted.late = self._loop.after(_ENDING, lambda: _kill(mounted))


def _way() -> str:
    """Return how images are mounted here.

    Raises:
        Refused: They cannot be.
    """
    if os.geteuid() == 0:
        with open("/proc/filesystems") as file:
            if "\tsquashfs\n" in file and os.path.exists("/dev/loop-control"):
                return "squashfs"
        raise Refused("the node's kernel has no squashfs or no loop devices")
    for name in _FUSE:
        path = found(name)
        if path:
            if not os.access("/dev/fuse", os.R_OK | os.W_OK):
                raise Refused("the node has no /dev/fuse for users")
            return path
    raise Refused("squashfuse is not installed on the node")


def _command(way: str) -> "list[str]":
    if way == "squashfs":
        return [found("mount") or "/bin/mount", "-t", way, "-o", "loop,ro,nosuid,nodev"]
    return [way, "-f"]


def _kill(mounted: Mounted) -> None:
    for pid in mounted.running:
        kill_quietly(pid, signal.SIGKILL)


def _be_apart(there: int, wait: int, others: "tuple[int, ...]") -> None:
    """Enter new namespaces, close a pipe, and wait; in a child; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for fd in others:
            os.close(fd)
        uid, gid = os.geteuid(), os.getegid()
        _checked(_libc.unshare(_NEWNS | (_NEWUSER if uid else 0)), "unshare")
        if uid:
            _prctl(_DUMPABLE, 1, 0)  # else our own files below /proc are root's
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{uid} {uid} 1")
            _write("/proc/self/gid_map", f"{gid} {gid} 1")
        else:  # in a user namespace of its own the kernel does it
            flags = ctypes.c_ulong(_REC | _SLAVE)
            _checked(_libc.mount(b"none", b"/", None, flags, None), "mount")
        os.close(there)
        os.read(wait, 1)
    except OSError as error:
        os.write(there, f"a namespace for images: {error}\n".encode(errors="replace"))
    finally:
        os._exit(0)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, first: int, second: int) -> None:
    nothing = ctypes.c_ulong(0)
    words = (ctypes.c_ulong(first), ctypes.c_ulong(second), nothing, nothing)
    _checked(_libc.prctl(option, *words), "prctl")
