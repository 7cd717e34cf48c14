"""Copies few and small files into directories that nobody else writes to.

In a container with one user, files of other users belong to nobody: they can be neither written
nor removed, and those for their owner alone cannot be read. Images have few of them. The copies
belong to that user, and the node mounts them above the image's layers. The kernel cannot look
into a directory that is for its owner alone: everything in it is copied.

An image's author may be hostile: no link is followed. Everything here blocks: call it in a worker
thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import msgspec

from scrun.core.trees import OPEN_FOLDER
from scrun.supervisor.staging.id_maps import read_cache, write_cache
from scrun.supervisor.staging.layers import (
    Unusable,
    attributes_of,
    deletion_by_name,
    is_deletion,
    opaque,
)

MOST = 2000
OPEN = OPEN_FOLDER | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_BYTES = 64 << 20
_PIECE = 1 << 20
_DEPTH = 50
_LINKED = 1 << 17  # some 30 MiB
_MARKS = ("user.overlay.", "trusted.overlay.", "user.fuseoverlayfs.")


class Vanished(OSError):
    """What is to be copied is not there any more, or something else is."""


@contextlib.contextmanager
def from_the_living(name: str | bytes) -> Iterator[None]:
    """Read what others may remove or replace at any moment: Vanished if they have."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL):
            raise
        raise Vanished(errno.ESTALE, "somebody has replaced it meanwhile", name) from error


def open_regular(name: str | bytes, folder: int, flags: int = os.O_RDONLY) -> int:
    """Open a regular file; Vanished if a container has put another in its place: to open acts."""
    with from_the_living(name):
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise Vanished(errno.ESTALE, "somebody has replaced it meanwhile", name)
        return os.open(f"/proc/self/fd/{found}", flags | os.O_CLOEXEC)
    finally:
        os.close(found)


def is_foreign(status: os.stat_result) -> bool:
    """Return whether something belongs to another user or group than this process."""
    return status.st_uid != os.geteuid() or status.st_gid != os.getegid()


class CopyRoom:
    """How many more bytes may be copied."""

    def __init__(
        self, size: int = _BYTES, entries: int = MOST, wait: Callable[[], None] = lambda: None
    ) -> None:
        """`wait` is called for each entry; it raises when nobody waits for the copy any more."""
        self.left = size
        self._entries = entries
        self._wait = wait

    def take(self, size: int) -> None:
        self._wait()
        self.left -= size
        self._entries -= 1
        if self._entries < 0:
            raise Unusable("have too many files to copy for the container's one user")


class TreeCopy:
    """Copies files, and trees of them.

    Of a file with several names it copies the content once, and links the others to that. It
    remembers such a file until it has seen all of its names; while it knows `_LINKED` of them, the
    names of further ones become files of their own.
    """

    def __init__(
        self,
        top: int,
        room: CopyRoom,
        *,
        owners: bool = False,
        opaque: str = "",
        by_fuse: bool = False,
        deepest: int = _DEPTH,
    ) -> None:
        """Begin.

        Args:
            top: The directory that everything is copied to, or below; the caller closes it.
            opaque: For a layer: the extended attribute of a copy's directories that hide what is
                below. Devices, FIFOs and sockets are copied, too.
            by_fuse: Whether the layer may have the marks of fuse-overlayfs.
            deepest: How many directories may be within each other.
        """
        self._top, self.room = top, room
        self.owners, self._opaque, self._by_fuse = owners, opaque, by_fuse
        self._deepest = deepest
        self._linked: dict[tuple[int, int], _Linked] = {}

    def all(self, source: int, target: int, path: bytes = b"") -> None:
        """Copy everything in a directory to an empty one, whoever it belongs to.

        `path` is where the target is: b"" or a path from the top one, with a slash at its end.
        Unusable if it is more, or not only files, directories and links.
        """
        self.check_depth(path)
        for name in map(os.fsencode, os.listdir(source)):
            if self._by_fuse and (deleted := deletion_by_name(name)) is not None:
                self.room.take(0)
                if deleted:
                    os.mknod(deleted, stat.S_IFCHR, dir_fd=target)
                else:
                    os.setxattr(target, self._opaque, b"y")
                continue
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                self.entry(source, target, name, path)
                continue
            self.room.take(0)
            inner = os.open(name, OPEN, dir_fd=source)
            try:
                os.mkdir(name, 0o700, dir_fd=target)
                copied = os.open(name, OPEN, dir_fd=target)
                try:
                    self.all(inner, copied, path + name + b"/")
                    if self._opaque:
                        _copy_marks(inner, copied, self._opaque)
                    dress(copied, status, owners=self.owners)
                finally:
                    os.close(copied)
            finally:
                os.close(inner)

    def check_depth(self, path: bytes) -> None:
        """Raise Unusable if a directory is too deep: each one holds descriptors."""
        if path.count(b"/") >= self._deepest:
            raise Unusable(f"have more than {self._deepest} directories within each other")

    def entry(self, source: int, target: int, name: bytes, path: bytes = b"") -> None:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            self._file(source, target, name, path + name)
            return
        self.room.take(0)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif self._opaque:
            os.mknod(name, status.st_mode, status.st_rdev, dir_fd=target)
            if is_deletion(status):
                return
        else:
            shown = os.fsdecode(name)
            raise Unusable(f"have a device, FIFO or socket of another user: {shown!a}")
        if self.owners:
            os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)

    def _file(self, source: int, target: int, name: bytes, path: bytes) -> None:
        reading = open_regular(name, source)
        try:
            status = os.fstat(reading)
            if status.st_nlink > 1 and self._is_linked(target, name, path, status):
                return
            if self._opaque:
                attributes_of(reading, self._opaque)
            if status.st_size > self.room.left:
                shown = os.fsdecode(name)
                raise Unusable(f"have more than {_BYTES >> 20} MiB to copy: {shown!a}")
            self.room.take(status.st_size)
            writing = os.open(name, WRITE, 0o600, dir_fd=target)
            try:
                if self.owners:
                    os.fchown(writing, status.st_uid, status.st_gid)
                copy_content(reading, writing, status.st_size)
                _set_mode(writing, status, owners=self.owners)
            finally:
                os.close(writing)
        finally:
            os.close(reading)

    def _is_linked(self, target: int, name: bytes, path: bytes, status: os.stat_result) -> bool:
        """Give a copy one more name, if there is one; else remember that there will be."""
        key = (status.st_dev, status.st_ino)
        known = self._linked.get(key)
        if known is None:
            if len(self._linked) < _LINKED:
                self._linked[key] = _Linked(path, status.st_nlink - 1)
            return False
        self.room.take(0)
        try:
            os.link(
                *(known.path, name),
                src_dir_fd=self._top,
                dst_dir_fd=target,
                follow_symlinks=False,
            )
        except OSError:  # too many names, or too long ones
            return False
        finally:
            known.left -= 1
            if not known.left:
                del self._linked[key]
        return True


class _Linked(msgspec.Struct):
    """A file with several names, `left` of which were not seen; its path is that of the copy."""

    path: bytes
    left: int


def _copy_marks(source: int, target: int, opaque: str) -> None:
    for name, value in attributes_of(source, opaque).items():
        try:
            os.setxattr(target, name, value)
        except OSError:
            if name == opaque:
                raise


def dress(fd: int, status: os.stat_result, *, owners: bool) -> None:
    """Set owner, mode and times; the owner first: chown(2) clears bits, and capabilities."""
    if owners:
        os.fchown(fd, status.st_uid, status.st_gid)
    _set_mode(fd, status, owners=owners)


def _set_mode(fd: int, status: os.stat_result, *, owners: bool) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not owners and is_foreign(status):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)  # it would be another user's
    os.fchmod(fd, mode)
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def copy_content(reading: int, writing: int, size: int) -> None:
    """Copy at most so many bytes, and the extended attributes, as far as permitted."""
    if os.fstat(reading).st_blocks * 512 < size:
        _copy_data(reading, writing, size)
    else:
        left = size
        while left > 0 and (sent := os.sendfile(writing, reading, None, min(left, _PIECE))):
            left -= sent
    with contextlib.suppress(OSError):
        for name in os.listxattr(reading):
            if name.startswith(_MARKS):
                continue
            with contextlib.suppress(OSError):
                os.setxattr(writing, name, os.getxattr(reading, name))


def _copy_data(reading: int, writing: int, size: int) -> None:
    """Copy a file with holes, which may claim to be larger than any disk, without the holes."""
    end = 0
    while end < size:
        try:
            begin = os.lseek(reading, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        end = min(size, os.lseek(reading, begin, os.SEEK_HOLE))
        os.lseek(writing, begin, os.SEEK_SET)
        while begin < end and (
            sent := os.sendfile(writing, reading, begin, min(end - begin, _PIECE))
        ):
            begin += sent
    os.ftruncate(writing, size)


def copy_attributes(source: int, target: int) -> None:
    """Give a directory another's attributes, unless equal: on overlays that is a change."""
    wanted, there = _attributes(source), _attributes(target)
    for name in wanted.keys() | there.keys():
        with contextlib.suppress(OSError):
            if name not in wanted:
                os.removexattr(target, name)
            elif wanted[name] != there.get(name):
                os.setxattr(target, name, wanted[name])


def _attributes(folder: int) -> dict[str, bytes]:
    """Return extended attributes, without the kernel's and the machine's own."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listxattr(folder):
            if not name.startswith((*_MARKS, "security.")):
                with contextlib.suppress(OSError):
                    found[name] = os.getxattr(folder, name)
    return found


_KNOWN = 400  # layers


class _LayerOwners(msgspec.Struct, frozen=True):
    """What a layer had when it was looked through.

    Attributes:
        mark: Inode, change and status change of its directory; an image's layers do not change.
        paths: The entries of others.
        closed: Their directories that not everybody may look into.
    """

    mark: tuple[int, int, int]
    paths: tuple[bytes, ...]
    closed: tuple[bytes, ...]


class Foreign(msgspec.Struct, frozen=True):
    """What belongs to others in some layer: see `_Known`."""

    paths: frozenset[bytes]
    closed: frozenset[bytes]


def foreign_in(layers: Sequence[str], cache: str, *, changes: bool) -> Foreign:
    """Return what belongs to others in any layer; `changes`: the first is a container's own."""
    known = read_cache(cache, dict[str, _LayerOwners])
    found = [_look_through(layer) for layer in layers[:changes]]
    new = False
    for layer in layers[changes:]:
        if layer not in known or known[layer].mark != _mark(layer):
            known[layer] = _look_through(layer)
            new = True
        found.append(known[layer])
    if new:
        there = [(path, one) for path, one in known.items() if os.path.isdir(path)]
        write_cache(cache, dict(there[-_KNOWN:]))
    foreign = Foreign(
        frozenset(path for one in found for path in one.paths),
        frozenset(path for one in found for path in one.closed),
    )
    if len(foreign.paths) > MOST:
        raise Unusable(f"have more than {MOST} files of other users, and the container has one")
    return foreign


def _mark(layer: str) -> tuple[int, int, int]:
    status = os.stat(layer)
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _look_through(layer: str) -> _LayerOwners:
    """Return what belongs to others in a layer, and hardly more than the limit."""
    found: list[bytes] = []
    closed: list[bytes] = []
    mark = _mark(layer)
    root = os.fsencode(layer)
    todo = [root]
    while todo and len(found) <= MOST:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    todo.append(entry.path)
                if is_foreign(status) and not is_deletion(status):
                    found.append(entry.path[len(root) + 1 :])
                    if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o005 != 0o005:
                        closed.append(found[-1])
    return _LayerOwners(mark, tuple(found), tuple(closed))


def copy_foreign(foreign: Foreign, rootfs: str, into: str, *, whole: bool) -> frozenset[str]:
    """Copy what belongs to others in some layer, with the directories above it.

    In `rootfs`, as it is mounted here, there may be something else. If the root directory itself
    is not mounted (`whole`), what is in it has the user as its owner anyway. Returns the names of
    its directories that were copied with all their content. Unusable as for `TreeCopy.all`.
    """
    room = CopyRoom()
    folders: dict[bytes, os.stat_result] = {}
    done: list[bytes] = []
    for path in sorted(foreign.closed):
        # a layer above may have removed it, or put a link in its place
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _Two(rootfs, into) as two:
            if _is_below(path, done):
                continue
            two.descend(path, folders)
            done.append(path)
            os.setxattr(two.target, opaque(users=True), b"y")
            TreeCopy(two.target, room).all(two.source, two.target)
    for path in sorted(foreign.paths):
        folder, name = os.path.split(path)
        if not (folder or whole) or _is_below(path, done):
            continue
        # a layer above may have removed it, or put a link in place of its directory
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _Two(rootfs, into) as two:
            if folder:
                two.descend(folder, folders)
            status = os.stat(name, dir_fd=two.source, follow_symlinks=False)
            if not is_foreign(status):
                continue
            if stat.S_ISDIR(status.st_mode):
                two.descend(name, folders, folder and folder + b"/")
            else:
                TreeCopy(two.target, room).entry(two.source, two.target, name)
    for path, status in sorted(folders.items(), reverse=True):
        with _Two(into, into) as two:
            two.descend(path, {})
            dress(two.target, status, owners=False)
    return frozenset(os.fsdecode(path) for path in done if b"/" not in path)


def _is_below(path: bytes, folders: list[bytes]) -> bool:
    return any(path == folder or path.startswith(folder + b"/") for folder in folders)


class _Two:
    """The same directory of two trees, as descriptors; links are not followed."""

    def __init__(self, source: str, target: str) -> None:
        self.source = os.open(source, OPEN)
        try:
            self.target = os.open(target, OPEN)
        except BaseException:
            os.close(self.source)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.source)
        os.close(self.target)

    def descend(self, path: bytes, made: dict[bytes, os.stat_result], before: bytes = b"") -> None:
        """Enter a directory; make the target's where it is missing, and note it in `made`."""
        here = before
        for name in path.split(b"/"):
            source = os.open(name, OPEN, dir_fd=self.source)
            os.close(self.source)
            self.source = source
            here += name
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.target)
                made[here] = os.fstat(source)
            target = os.open(name, OPEN, dir_fd=self.target)
            os.close(self.target)
            self.target = target
            here += b"/"
