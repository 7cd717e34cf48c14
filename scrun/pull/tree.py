"""Writes the entries of layers below a directory (layer.md of the image specification).

What other entries have written there may be hostile. So each directory is opened on its own,
relative to the one above it and without following links (O_NOFOLLOW), and all that happens in it
happens by its descriptor: nothing leads out. The last directories stay open, because entries of
one follow each other.

A path through a link of the same layer leads where the link does, within the image; one through a
link of a layer below makes a directory in its place. Overlays of engines have it so.

Modes and times of directories are set at the end: what is written to a directory changes its time,
and some exclude even their owner.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Self, TypeVar

from scrun.core.errors import ImageError
from scrun.core.inside import DEPTH, LINKS, OPEN_ENTRY, open_inside
from scrun.core.trees import OPEN_FOLDER, remove
from scrun.pull.layers import Bounds
from scrun.pull.tar import BLOCKS, CHARACTERS, FIFO, FILE, FOLDER, HARD_LINK, LINK, Archive, Member

_FOLDER = OPEN_FOLDER | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WHITEOUT, _META, _OPAQUE = b".wh.", b".wh..wh.", b".wh..wh..opq"
_IMPLIED = 0o755  # of a directory that no entry describes
_PIECE = 1 << 20
_KINDS = {CHARACTERS: stat.S_IFCHR, BLOCKS: stat.S_IFBLK}
# labels of this machine's own policy; and what an overlay takes for its own notes
_LEFT_OUT = ("security.selinux", "system.nfs4_acl", "trusted.overlay.", "user.overlay.")
_Made = TypeVar("_Made")
_REFUSED = (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC, errno.E2BIG)


class Tree:
    """A root file system that is being made of layers; a context manager for its descriptors."""

    def __init__(self, path: str, bounds: Bounds) -> None:
        self._bounds = bounds
        self._root = os.open(path, _FOLDER)
        self._device = os.fstat(self._root).st_dev
        self._is_root = os.geteuid() == 0
        self._way: list[tuple[bytes, int]] = []  # the open directories: name, descriptor
        self._last: list[bytes] | None = None  # the path that has led there
        self._here = b""  # where it really is, with a slash at its end; b"" for the root
        self._folders: dict[bytes, tuple[int, int | None]] = {}  # mode and time, for the end
        self._written: set[bytes] = set()  # of this layer
        self._hidden: set[bytes] = set()  # by whiteouts of this layer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._back(0)
        os.close(self._root)

    def add(self, archive: Archive) -> None:
        self._back(0)
        self._last = None
        self._written, self._hidden = set(), set()
        for entry in archive:
            path = _parts(entry.name)
            self._bounds.entry(entry.name, len(path))
            if not path:
                if entry.kind == FOLDER:
                    self._describe(self._root, b"", entry)
                continue
            try:
                self._put(entry, path, archive)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                    raise
                name = os.fsdecode(entry.name)
                raise ImageError(f"{name!r} cannot be made: {error.strerror}") from error

    def make(self, path: bytes) -> None:
        """Make a directory where nothing is; not through links, nor in place of anything."""
        self._back(0)
        self._last = None
        try:
            parts = _parts(path)[:DEPTH]
        except ImageError:
            return
        for name in parts:
            with contextlib.suppress(OSError):
                os.mkdir(name, 0o700, dir_fd=self._end)
                self._folders[self._path(name)] = _IMPLIED, None
                self._bounds.folder()
            try:
                folder = os.open(name, _FOLDER, dir_fd=self._end)
            except OSError:
                return
            self._way.append((name, folder))

    def finish(self) -> None:
        """Give the directories their modes and times, those that are below others first."""
        self._back(0)
        for path in sorted(self._folders, reverse=True):
            mode, time = self._folders[path]
            try:
                folder = self._found(path.split(b"/") if path else [])
            except (FileNotFoundError, NotADirectoryError):
                continue  # something is in its place by now, or nothing
            os.fchmod(folder, mode)
            if time is not None:
                os.utime(folder, ns=(time, time))

    # The way to an entry

    def _back(self, length: int) -> None:
        while len(self._way) > length:
            os.close(self._way.pop()[1])

    @property
    def _end(self) -> int:
        return self._way[-1][1] if self._way else self._root

    def _found(self, path: list[bytes]) -> int:
        """Return the directory of a path without links, which is there."""
        same = 0
        while same < min(len(path), len(self._way)) and self._way[same][0] == path[same]:
            same += 1
        self._back(same)
        for name in path[same:]:
            self._way.append((name, os.open(name, _FOLDER, dir_fd=self._end)))
        return self._end

    def _enter(self, path: list[bytes]) -> int:
        """Return the directory of a path, made if need be."""
        if path == self._last:
            return self._end
        self._last = None
        todo = path[::-1]
        depth = links = 0  # how much of `_way` is on this path
        while todo:
            name = todo.pop()
            if name == b"..":
                depth = max(0, depth - 1)
                continue
            if depth < len(self._way) and self._way[depth][0] == name:
                depth += 1
                continue
            self._back(depth)
            target = self._step(name)
            if target is None:
                depth += 1
                continue
            links += 1
            if links > LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if target.startswith(b"/"):
                depth = 0
            todo += [part for part in target.split(b"/") if part not in (b"", b".")][::-1]
        self._back(depth)
        self._last = path
        self._here = self._path(b"")
        return self._end

    def _path(self, name: bytes) -> bytes:
        return b"/".join([*(each for each, _ in self._way), name])

    def _step(self, name: bytes) -> bytes | None:
        """Enter a directory; of a link of this layer return where it leads instead."""
        if len(self._way) >= DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"it is below more than {DEPTH} directories")
        path, above = self._path(name), self._end
        try:
            folder = os.open(name, _FOLDER, dir_fd=above)
        except FileNotFoundError:
            folder = self._implied(above, name, path)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            if path in self._written:
                with contextlib.suppress(OSError):
                    return os.readlink(name, dir_fd=above)
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
            self._remove(above, name)
            folder = self._implied(above, name, path)
        self._way.append((name, folder))
        self._written.add(path)
        return None

    def _implied(self, above: int, name: bytes, path: bytes) -> int:
        self._bounds.folder()
        os.mkdir(name, 0o700, dir_fd=above)
        self._folders[path] = _IMPLIED, None
        return os.open(name, _FOLDER, dir_fd=above)

    def _remove(self, above: int, name: bytes) -> None:
        remove(above, os.fsdecode(name), self._device)

    # Entries

    def _put(self, entry: Member, path: list[bytes], archive: Archive) -> None:
        *folder, name = path
        if name.startswith(_WHITEOUT):
            self._hide(folder, name)
            return
        here = self._enter(folder)
        full = self._here + name
        kind = entry.kind
        if kind == FOLDER:
            self._folder(entry, here, name, full)
        elif kind == FILE:
            self._file(entry, here, name, archive)
        elif kind == HARD_LINK:
            self._hard_link(entry, here, name)
        else:
            self._special(entry, here, name)
        self._written.add(full)

    def _anew(self, here: int, name: bytes, make: Callable[[], _Made]) -> _Made:
        """Make something, in place of anything that is there."""
        try:
            return make()
        except FileExistsError:
            self._remove(here, name)
            return make()

    def _folder(self, entry: Member, here: int, name: bytes, full: bytes) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=here)
        try:
            folder = os.open(name, _FOLDER, dir_fd=here)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            self._remove(here, name)
            os.mkdir(name, 0o700, dir_fd=here)
            folder = os.open(name, _FOLDER, dir_fd=here)
        try:
            self._describe(folder, full, entry)
        finally:
            os.close(folder)

    def _describe(self, folder: int, full: bytes, entry: Member) -> None:
        """Give a directory what its entry says; mode and time at the end."""
        self._folders[full] = entry.mode, entry.time
        if self._is_root:
            os.fchown(folder, entry.uid, entry.gid)
        for name in os.listxattr(folder):  # of a layer below
            if not name.startswith(_LEFT_OUT):
                with _unless_refused():
                    os.removexattr(folder, name)
        _set_xattrs(folder, entry)

    def _file(self, entry: Member, here: int, name: bytes, archive: Archive) -> None:
        file = self._anew(here, name, lambda: os.open(name, _NEW, 0o600, dir_fd=here))
        try:
            if entry.pieces is not None:
                self._bounds.take(entry.size)
                os.truncate(file, entry.size)
                for offset, length in entry.pieces:
                    os.lseek(file, offset, os.SEEK_SET)
                    _copy(archive, file, length)
            elif entry.size:
                _copy(archive, file, entry.size)
            if self._is_root:
                os.fchown(file, entry.uid, entry.gid)
            if entry.xattrs:
                _set_xattrs(file, entry)
            os.fchmod(file, entry.mode)  # changing the owner takes bits away
            os.utime(file, ns=(entry.time, entry.time))
        finally:
            os.close(file)

    def _hard_link(self, entry: Member, here: int, name: bytes) -> None:
        *folder, target = _parts(entry.link) or [b"."]
        there = open_inside(self._root, b"/".join(folder))
        try:

            def make() -> None:
                os.link(target, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)

            try:
                make()
            except FileExistsError:
                one = os.stat(target, dir_fd=there, follow_symlinks=False)
                if os.path.samestat(one, os.stat(name, dir_fd=here, follow_symlinks=False)):
                    return
                self._remove(here, name)
                make()
        finally:
            os.close(there)

    def _special(self, entry: Member, here: int, name: bytes) -> None:
        """Make a link, a FIFO or a device; of a device without root an empty file."""
        if entry.kind == LINK:
            self._anew(here, name, lambda: os.symlink(entry.link, name, dir_fd=here))
        elif entry.kind == FIFO:
            self._anew(here, name, lambda: os.mkfifo(name, 0o600, dir_fd=here))
        elif self._is_root:
            device = os.makedev(*entry.device)
            mode = _KINDS[entry.kind] | 0o600
            self._anew(here, name, lambda: os.mknod(name, mode, device, dir_fd=here))
        else:
            file = self._anew(here, name, lambda: os.open(name, _NEW, 0o600, dir_fd=here))
            os.close(file)
        if self._is_root:
            os.chown(name, entry.uid, entry.gid, dir_fd=here, follow_symlinks=False)
        if entry.kind != LINK:
            made = os.open(name, OPEN_ENTRY, dir_fd=here)
            try:
                os.chmod(f"/proc/self/fd/{made}", entry.mode)
            finally:
                os.close(made)
        time = entry.time
        os.utime(name, ns=(time, time), dir_fd=here, follow_symlinks=False)

    # Whiteouts

    def _hide(self, folder: list[bytes], name: bytes) -> None:
        """Remove what layers below have; what this one has stays, whatever comes first."""
        for count in range(1, len(folder) + 1):
            above = b"/".join(folder[:count])
            if above in self._hidden and above not in self._written:
                return  # it hides what is hidden
        hidden = name[len(_WHITEOUT) :]
        if name != _OPAQUE and (hidden in (b"", b".", b"..") or name.startswith(_META)):
            if hidden in (b".", b".."):
                raise OSError(errno.EINVAL, "a whiteout of this name makes no sense")
            return  # what aufs has noted for itself
        here = self._enter(folder)
        full = self._here + (b"" if name == _OPAQUE else hidden)
        if full in self._hidden:
            return
        self._hidden.add(full)
        if name == _OPAQUE:
            self._prune(here, full)
        elif full not in self._written:
            self._remove(here, hidden)
        else:
            self._prune_below(here, hidden, full)

    def _prune(self, folder: int, path: bytes) -> None:
        """Remove from a directory what is not of this layer; `path` has a slash at its end."""
        for text in os.listdir(folder):
            name = os.fsencode(text)
            if path + name in self._written:
                self._prune_below(folder, name, path + name)
            else:
                self._remove(folder, name)

    def _prune_below(self, above: int, name: bytes, path: bytes) -> None:
        try:
            folder = os.open(name, _FOLDER, dir_fd=above)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                return
            raise
        try:
            self._prune(folder, path + b"/")
        finally:
            os.close(folder)


def _parts(name: bytes) -> list[bytes]:
    """Split a path into names; refuse one that leads out of the image."""
    parts = [part for part in name.split(b"/") if part and part != b"."]
    if b".." not in parts:
        return parts
    found: list[bytes] = []
    for part in parts:
        if part != b"..":
            found.append(part)
        elif found:
            found.pop()
        else:
            raise ImageError(f"{os.fsdecode(name)!r} leads out of the image")
    return found


def _copy(archive: Archive, file: int, length: int) -> None:
    while length:
        piece = memoryview(archive.content(min(length, _PIECE)))
        length -= len(piece)
        while piece:
            piece = piece[os.write(file, piece) :]


def _set_xattrs(file: int, entry: Member) -> None:
    for name, value in entry.xattrs.items():
        if not name.startswith(_LEFT_OUT):
            with _unless_refused():
                os.setxattr(file, name, value)


@contextlib.contextmanager
def _unless_refused() -> Iterator[None]:
    """Let pass that a file system or an ordinary user cannot have an attribute."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
