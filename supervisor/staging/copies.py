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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec

from scrun.core.trees import OPEN_FOLDER
from scrun.core.typed import decode_as
from scrun.core.whole_files import write_whole
from scrun.supervisor.staging.layers import Unusable, opaque
from scrun.supervisor.staging.whiteouts import is_deletion, is_set

MOST = 2000
OPEN = OPEN_FOLDER | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_BYTES = 64 << 20
_PIECE = 1 << 20
_DEPTH = 50
_MARKS = ("user.overlay.", "trusted.overlay.", "user.fuseoverlayfs.")


class Vanished(OSError):
    """What is to be copied is not there any more, or something else is."""


@contextlib.contextmanager
def from_the_living(name: str | bytes) -> Iterator[None]:
    """Read something that others may remove or replace at any moment.

    Raises:
        Vanished: They have.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL):
            raise
        raise Vanished(errno.ESTALE, "somebody has replaced it meanwhile", name) from error


def open_regular(name: str | bytes, folder: int, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, and nothing that a container has put in its place: to open acts.

    Raises:
        Vanished: It is something else by now.
        OSError: It cannot be opened.
    """
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


class Room:
    """How much more may be copied.

    Attributes:
        left: The bytes.
    """

    def __init__(self, size: int = _BYTES, entries: int = MOST) -> None:
        self.left = size
        self._entries = entries

    def take(self, size: int) -> None:
        """Count one more.

        Raises:
            Unusable: They are too many.
        """
        self.left -= size
        self._entries -= 1
        if self._entries < 0:
            raise Unusable("have too many files to copy for the container's one user")


def copy_all(
    source: int,
    target: int,
    room: Room,
    depth: int = _DEPTH,
    *,
    owners: bool = False,
    opaque: str = "",
) -> None:
    """Copy everything in a directory, whoever it belongs to.

    Args:
        target: An empty directory.
        opaque: For a layer: the extended attribute of directories that hide what is below.

    Raises:
        Unusable: It is more, or not only files, directories and links.
    """
    if not depth:
        raise Unusable(f"have more than {_DEPTH} directories within each other")
    for name in map(os.fsencode, os.listdir(source)):
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if opaque and is_deletion(status):
            room.take(0)
            os.mknod(name, stat.S_IFCHR, dir_fd=target)
            continue
        if not stat.S_ISDIR(status.st_mode):
            room.take(copy_entry(source, target, name, room=room.left, owners=owners))
            continue
        room.take(0)
        inner = os.open(name, OPEN, dir_fd=source)
        try:
            os.mkdir(name, 0o700, dir_fd=target)
            copied = os.open(name, OPEN, dir_fd=target)
            try:
                copy_all(inner, copied, room, depth - 1, owners=owners, opaque=opaque)
                if opaque and is_set(inner, opaque):
                    os.setxattr(copied, opaque, b"y")
                dress(copied, status, owners=owners)
            finally:
                os.close(copied)
        finally:
            os.close(inner)


def copy_entry(source: int, target: int, name: bytes, *, room: int, owners: bool = False) -> int:
    """Copy a file or a link from one directory to another.

    Args:
        room: The most bytes.

    Returns:
        Its bytes.

    Raises:
        Unusable: It is larger, or something else.
    """
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    shown = os.fsdecode(name)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        if owners:
            os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
        return 0
    if not stat.S_ISREG(status.st_mode):
        raise Unusable(f"have a device, FIFO or socket of another user: {shown!a}")
    reading = open_regular(name, source)
    try:
        status = os.fstat(reading)
        if status.st_size > room:
            raise Unusable(f"have more than {_BYTES >> 20} MiB to copy: {shown!a}")
        writing = os.open(name, WRITE, 0o600, dir_fd=target)
        try:
            copy_content(reading, writing, status.st_size)
            dress(writing, status, owners=owners)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return status.st_size


def dress(fd: int, status: os.stat_result, *, owners: bool) -> None:
    """Set owner, mode and times; the owner first: chown(2) clears bits."""
    mode = stat.S_IMODE(status.st_mode)
    if owners:
        os.fchown(fd, status.st_uid, status.st_gid)
    elif is_foreign(status):
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
    """Give a directory the extended attributes of another, as far as permitted.

    What is so already is not touched: on an overlay that would be a change.
    """
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
    """Return what belongs to others in any layer.

    Args:
        changes: Whether the first one is a container's own, which may change.

    Raises:
        Unusable: They are too many.
    """
    known = _read(cache)
    found = [_look_through(layer) for layer in layers[:changes]]
    new = False
    for layer in layers[changes:]:
        if layer not in known or known[layer].mark != _mark(layer):
            known[layer] = _look_through(layer)
            new = True
        found.append(known[layer])
    if new:
        _write(cache, {path: one for path, one in known.items() if os.path.isdir(path)})
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


def _read(cache: str) -> dict[str, _LayerOwners]:
    try:
        return decode_as(Path(cache).read_bytes(), dict[str, _LayerOwners])
    except (OSError, msgspec.DecodeError):
        return {}


def _write(cache: str, known: dict[str, _LayerOwners]) -> None:
    """Write the cache; a failure costs only another look next time."""
    latest = dict(list(known.items())[-_KNOWN:])
    with contextlib.suppress(OSError, UnicodeEncodeError):
        os.makedirs(os.path.dirname(cache), mode=0o700, exist_ok=True)
        write_whole(cache, msgspec.json.encode(latest))


def copy_foreign(foreign: Foreign, rootfs: str, into: str, *, whole: bool) -> frozenset[str]:
    """Copy what belongs to others, with the directories above it.

    Args:
        foreign: Where such things are in some layer; in the root file system there may be
            something else.
        rootfs: The root file system, as it is mounted here.
        into: An empty directory.
        whole: Whether the root directory itself is mounted; if not, what is in it has the user as
            its owner anyway.

    Returns:
        The names of the root directory's directories that were copied with all their content.

    Raises:
        Unusable: It is too large, or neither a file nor a directory nor a link.
    """
    room = Room()
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
            copy_all(two.source, two.target, room)
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
                room.take(copy_entry(two.source, two.target, name, room=room.left))
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
        """Enter a directory, and make the target's where it is missing.

        Args:
            path: The directory, relative.
            made: Receives the path and the status of each new one.
        """
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


_DEEPEST = 100  # three descriptors each


def write_difference(own: str, image: str, into: str, room: Room, *, owners: bool) -> None:
    """Write, as a layer, what makes another directory of an image's.

    Files with the same size, time and permissions are the same: podman's copies keep them.

    Args:
        into: An empty directory.

    Raises:
        Unusable: It is more, or not only files, directories and links.
    """
    opened: list[int] = []
    try:
        opened.extend(os.open(path, OPEN) for path in (own, image, into))
        _compare(opened[0], opened[1], opened[2], room, _DEEPEST, owners=owners)
    finally:
        for fd in opened:
            os.close(fd)


def _compare(own: int, image: int, into: int, room: Room, depth: int, *, owners: bool) -> bool:
    """Write the difference of one directory; return whether there is one."""
    if not depth:
        raise Unusable(f"have more than {_DEEPEST} directories within each other")
    changed = False
    mine, theirs = (set(map(os.fsencode, os.listdir(folder))) for folder in (own, image))
    for name in theirs - mine:
        room.take(0)
        os.mknod(name, stat.S_IFCHR, dir_fd=into)
        changed = True
    for name in mine:
        new = os.stat(name, dir_fd=own, follow_symlinks=False)
        old = None
        if name in theirs:
            old = os.stat(name, dir_fd=image, follow_symlinks=False)
        if stat.S_ISDIR(new.st_mode):
            changed |= _folder(name, (own, image, into), (new, old), room, depth, owners=owners)
        elif old is None or not _same(name, own, image, new, old):
            room.take(copy_entry(own, into, name, room=room.left, owners=owners))
            changed = True
    return changed


def _folder(
    name: bytes,
    folders: tuple[int, int, int],
    statuses: tuple[os.stat_result, os.stat_result | None],
    room: Room,
    depth: int,
    *,
    owners: bool,
) -> bool:
    own, image, into = folders
    new, old = statuses
    is_in_both = old is not None and stat.S_ISDIR(old.st_mode)
    os.mkdir(name, 0o700, dir_fd=into)
    opened: list[int] = []
    try:
        both = (own, into, *([image] if is_in_both else []))
        opened.extend(os.open(name, OPEN, dir_fd=parent) for parent in both)
        if is_in_both:
            assert old is not None
            changed = _compare(opened[0], opened[2], opened[1], room, depth - 1, owners=owners)
            changed |= _permissions(new) != _permissions(old)
        else:
            room.take(0)
            copy_all(opened[0], opened[1], room, depth - 1, owners=owners)
            changed = True
        if changed:
            dress(opened[1], new, owners=owners)
    finally:
        for fd in opened:
            os.close(fd)
    if not changed:
        os.rmdir(name, dir_fd=into)
    return changed


def _permissions(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mode, status.st_uid, status.st_gid


def _same(name: bytes, own: int, image: int, new: os.stat_result, old: os.stat_result) -> bool:
    if _permissions(new) != _permissions(old):
        return False
    if stat.S_ISLNK(new.st_mode):
        return os.readlink(name, dir_fd=own) == os.readlink(name, dir_fd=image)
    this, that = ((one.st_size, one.st_mtime_ns, one.st_rdev) for one in (new, old))
    return this == that
