"""A mount namespace for the root file system of one container; nothing of it stays on the node.

It goes when nobody holds it any more, however the shim ends. An ordinary user's is in a user
namespace. That has this one user, by the same number, so that the runtime finds itself where it
was; or it has all users of the container, and replaces the one that the container would have: no
other user namespace below it could have them, for newuidmap(1) has no rights there. Where another
one than this user is root in the container, the runtime is root in it, and maps users itself.
"""

import _signal as signal  # without enum, which takes some ms
import os
import struct

from .files import unlike
from .libc import (
    AMBIENT,
    BELOW,
    DUMPABLE,
    NEW_MOUNTS,
    NEW_NETWORK,
    NEW_USERS,
    SLAVE,
    enter,
    make_inheritable,
    mount,
    prctl,
    unshare,
)
from .runtime import CallRefused, found, last_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .files import Look

    Maps = dict[str, list[dict[str, int]]]

_MAPS = ("uidMappings", "gidMappings")
_TOOLS = ("newuidmap", "newgidmap")
_WORDS = 4096
_DONE = b"."
_END = b"\0"
_RAISE, _SYS_ADMIN = 2, 21  # capabilities(7)
_SET_FLAGS, _IS_UP = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP
_FLAGS = struct.Struct("=16sh22x")  # struct ifreq


class Space:
    """A mount namespace, and a user namespace unless we are root; open as long as this is held.

    Attributes:
        said: A pipe that can be read when the namespaces are there or cannot be: then call `take`;
            and after `mount`: then call `check`.
        mounts: Its mountinfo, after `take`.
        has_network: Whether it has a network namespace, too.
        others: The numbers of directories that are others there, after `take`.
        is_around: Whether its container has a user namespace of its own in this one.
    """

    def __init__(
        self,
        maps: "Maps | None" = None,
        users: int = -1,
        network: bool = False,
        around: bool = False,
        looks: "Sequence[Look]" = (),
    ) -> None:
        """Begin to make it, in a child.

        Args:
            maps: `uidMappings` and `gidMappings` of its user namespace; None: those of this user.
            users: A descriptor of an earlier user namespace with these maps; or -1.
            network: Whether it has a network namespace, too, with nothing in it that is up.
            around: Whether the container has a user namespace of its own in this one; else this
                one replaces that.
            looks: Directories to look at there (`files.unlike`).

        Raises:
            OSError: No process is left.
            CallRefused: newuidmap(1) is not installed.
        """
        self._has_users = bool(maps)
        self.has_network, self.is_around = network, around
        self.others: list[int] = []
        only = (os.geteuid(), os.getegid())
        ids = _ids_of_one(maps, only) if maps else only
        tools = _tools(maps) if maps and users < 0 and ids is None else []
        self.said, there = os.pipe()
        wait, self._go_on = os.pipe()
        self._fds: list[int] = []
        self._enters: list[int] | None = None
        self.mounts = -1
        try:
            self._pid = os.fork()
            if self._pid == 0:
                more = NEW_NETWORK if network else 0
                others = self.said, self._go_on
                _be_apart(there, wait, others, tools, users, ids or only, more, looks)
        except OSError:
            self.let_go()
            raise
        finally:
            os.close(there)
            os.close(wait)

    def take(self) -> None:
        """Hold the namespaces; the child goes after `mount` or `dismiss`.

        Raises:
            OSError: The kernel refuses.
            CallRefused: Likewise; or newuidmap(1) does.
        """
        self.others = self.check()
        names = ["mnt"] if os.geteuid() == 0 else ["user", "mnt"]
        for name in names + ["net"] * self.has_network:
            self._fds.append(os.open(f"/proc/{self._pid}/ns/{name}", os.O_RDONLY))
        self.mounts = os.open(f"/proc/{self._pid}/mountinfo", os.O_RDONLY)

    def users(self) -> int:
        """Return a descriptor of its user namespace, if that has several users; or -1."""
        return os.dup(self._fds[0]) if self._has_users else -1

    def hand_over_network(self) -> str:
        """Return a path of its network namespace, which programs do not enter from now on.

        A runtime sets sysctls of a network only where config.json names it. Only root may open it.
        """
        self._enters = self._fds[:-1]
        return f"/proc/{os.getpid()}/fd/{self._fds[-1]}"

    def network(self) -> "list[int]":
        """Return descriptors of its network namespace, and of its user namespace if it has one."""
        return [self._fds[-1], *self._fds[:-2]]

    def share_network(self, process: int) -> None:
        """Let programs that enter it be in the network of a process, too.

        A runtime that entered the container's user namespace first would have no right to.
        """
        self._fds.append(os.open(f"/proc/{process}/ns/net", os.O_RDONLY))

    def mount(self, point: str, directory: str, options: str) -> None:
        """Begin to mount an overlay there; the child does it, as it may mount and runs already.

        Args:
            point: An absolute path.
            directory: Where the paths in the options begin.
        """
        words = f"{point}\n{directory}\n{options}".encode(errors="surrogateescape")
        os.write(self._go_on, words + _END)

    def dismiss(self) -> None:
        """Let the child go: there is no overlay to mount."""
        os.close(self._go_on)
        self._go_on = -1

    def check(self) -> "list[int]":
        """Take the child's word for what it was to do; return the numbers that follow.

        Raises:
            CallRefused: It could not.
        """
        said = os.read(self.said, _WORDS)
        if not said.startswith(_DONE):
            raise CallRefused(last_line(said) or "it was killed")
        return [int(number) for number in said[len(_DONE) :].split()]

    def enter(self) -> None:
        """Be in it; for a child before it becomes a program."""
        for fd in self._fds if self._enters is None else self._enters:
            enter(fd)

    def enter_to_mount(self) -> None:
        """Be in it, as one that may mount; likewise."""
        self.enter()
        if os.geteuid() == 0:
            return
        make_inheritable(_SYS_ADMIN)  # as the kernel wants it for the next
        prctl(AMBIENT, _RAISE, _SYS_ADMIN)

    def fit(self, config: "dict[str, Any]") -> None:
        """Change a config.json so that its container has the users of this, if it is to."""
        if self._has_users and not self.is_around:
            linux = config["linux"]
            linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "user"]
            for name in _MAPS:
                del linux[name]

    def points(self) -> "set[str]":
        """Return where something is mounted in it."""
        os.lseek(self.mounts, 0, os.SEEK_SET)
        # others name mount points, too, and the kernel does not escape a carriage return
        with open(os.dup(self.mounts), errors="surrogateescape", newline="\n") as file:
            return {line.split(" ", 5)[4] for line in file}

    def let_go(self) -> None:
        for fd in (self.said, self._go_on, self.mounts, *self._fds):
            if fd >= 0:
                os.close(fd)
        self._fds.clear()


def _ids_of_one(maps: "Maps", only: "tuple[int, int]") -> "tuple[int, int] | None":
    """Return what user and group are called in a namespace of one user; None for several."""
    lines = [maps[name] for name in _MAPS]
    if any(len(one) > 1 or one[0]["size"] > 1 for one in lines):
        return None
    user, group = (one[0] for one in lines)
    is_ours = (user["hostID"], group["hostID"]) == only
    return (user["containerID"], group["containerID"]) if is_ours else None


def _tools(maps: "Maps") -> "list[list[str]]":
    """Return the commands that map users and groups, without the process."""
    commands = []
    for tool, name in zip(_TOOLS, _MAPS):
        path = found(tool)
        if not path:
            raise CallRefused(f"the node has no {tool}")
        numbers = [
            str(line[key]) for line in maps[name] for key in ("containerID", "hostID", "size")
        ]
        commands.append([path, *numbers])
    return commands


def _be_apart(
    there: int,
    wait: int,
    others: "Sequence[int]",
    tools: "Sequence[Sequence[str]]",
    users: int,
    ids: "tuple[int, int]",
    more: int,
    looks: "Sequence[Look]",
) -> None:
    """Enter new namespaces, close a pipe, and wait; in a child; never returns.

    Args:
        ids: What user and group are called there, if it has these alone.
        more: More kinds of namespaces.
    """
    try:
        signal.set_wakeup_fd(-1)
        for fd in others:
            os.close(fd)
        uid, gid = os.geteuid(), os.getegid()
        mapping = _Mapping(tools, there) if tools else None
        if users >= 0:
            enter(users, NEW_USERS)
        new = NEW_USERS if uid and users < 0 else 0
        unshare(NEW_MOUNTS | new | more)
        if more & NEW_NETWORK:
            _raise_loopback()
        if uid:
            prctl(DUMPABLE, 1)  # else our own files below /proc are root's
        if mapping is not None:
            if not mapping.done():
                return
        elif new:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{ids[0]} {uid} 1")
            _write("/proc/self/gid_map", f"{ids[1]} {gid} 1")
        elif not uid:  # in a user namespace of its own the kernel does it
            mount(b"none", b"/", None, BELOW | SLAVE, None)
        os.write(there, _DONE + " ".join(map(str, unlike(looks))).encode())
        _mount_overlay(wait, there)
    except OSError as error:
        os.write(there, f"a namespace for its files: {error}\n".encode(errors="replace"))
    finally:
        os._exit(0)


def _raise_loopback() -> None:
    """Have a loopback in a new network (netdevice(7)): runtimes raise that of their own only."""
    import _socket
    import fcntl

    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(sock.fileno(), _SET_FLAGS, _FLAGS.pack(b"lo", _IS_UP))
    sock.close()


def _mount_overlay(wait: int, there: int) -> None:
    """Mount what is asked for, and say so; nothing, if the pipe ends first."""
    words = b""
    while not words.endswith(_END):
        more = os.read(wait, _WORDS)
        if not more:
            return
        words += more
    point, directory, options = words[:-1].split(b"\n")
    os.chdir(directory)
    # mount(8) of 2.39 and newer gives the kernel the options one by one, of 256 bytes at most
    mount(b"overlay", point, b"overlay", 0, options)
    os.write(there, _DONE)


class _Mapping:
    """A child outside of the user namespace, which maps the users of its parent there."""

    def __init__(self, tools: "Sequence[Sequence[str]]", words: int) -> None:
        here, self._go = os.pipe()
        process = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._go)
            _map_users(process, here, tools, words)
        os.close(here)

    def done(self) -> bool:
        """Map the users; return whether that succeeded. If not, the reason was written."""
        os.write(self._go, b"\n")
        return os.waitpid(self._pid, 0)[1] == 0


def _map_users(process: int, here: int, tools: "Sequence[Sequence[str]]", words: int) -> None:
    status = 1
    try:
        os.dup2(words, 2)
        if os.read(here, 1):
            for path, *numbers in tools:
                status = os.spawnv(os.P_WAIT, path, [path, str(process), *numbers])
                if status:
                    os.write(words, f"{path}: status {status}\n".encode())
                    break
    finally:
        os._exit(status and 1)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
