"""Copies a container's changes in a copy of its root file system back to the original.

The root file system is copied if the nodes cannot see it, as with an overlay, the default of
podman's and docker's stores. Without this, the files that `RUN` of a build writes would be lost.

A container, which may be hostile, wrote the copy, and the original belongs to the container
engine. So this follows no links of either, enters no other file system, and creates only files,
directories, links and FIFOs. Everything here blocks: call it in a worker thread.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator

import msgspec

from scrun.core.errors import StagingError
from scrun.supervisor.core.files import OPEN_FOLDER, remove

_PIECE = 1 << 20
_OPEN = OPEN_FOLDER | os.O_CLOEXEC
_TEMPORARY = ".scrun-%d"


class _Work(msgspec.Struct, frozen=True):
    """The parameters for the whole tree.

    Attributes:
        since: Files without a change after this time are unchanged (nanoseconds).
        owners: Whether to set the owners of the copy.
        device: The original's file system.
        go_on: Returns whether there is time left.
    """

    since: int
    owners: bool
    device: int
    go_on: Callable[[], bool]


def bring_back(
    copied: str, original: str, since: int, *, owners: bool, go_on: Callable[[], bool]
) -> None:
    """Make a directory equal to its changed copy.

    Args:
        copied: The copy, changed by a container.
        original: The directory that it was made from.
        since: The time of the last change (`st_ctime_ns`) that the copying itself made.
        owners: Whether the copy's owners are valid; if not, new files belong to the user of this
            process, and existing files keep their owners.
        go_on: Called now and then; the rest is left out when it returns False.

    Raises:
        StagingError: Changes are missing in the original.
    """
    try:
        level = _Level(copied, original)
        try:
            work = _Work(since, owners, os.fstat(level.target).st_dev, go_on)
            _directory(level, work)
        finally:
            level.close()
    except (OSError, RecursionError) as error:
        raise StagingError(
            f"not all of the container's changes are in {original}: {error}"
        ) from error


class _Level:
    """A directory of the copy, with the same one of the original.

    Only these and their parents are open, however deep a tree is. The way back from further below
    is `..`, which needs the permission to search the directory. A directory with subdirectories
    has been searched already, and an empty one is left while its parent is open.
    """

    def __init__(self, copied: str, original: str) -> None:
        self._above: list[int] = []
        self._here = [os.open(copied, _OPEN)]
        try:
            self._here.append(os.open(original, _OPEN))
        except BaseException:
            self.close()
            raise

    @property
    def source(self) -> int:
        """The directory of the copy."""
        return self._here[0]

    @property
    def target(self) -> int:
        """The directory of the original."""
        return self._here[1]

    @contextlib.contextmanager
    def inside(self, name: str, finish: Callable[[int], None]) -> Iterator[None]:
        """Enter a directory for the block, and return.

        Args:
            name: Its name.
            finish: Called with the original's at the end, as its final mode may forbid the way
                back.

        Raises:
            OSError: It cannot be entered, or the way back leads elsewhere.
        """
        parent, grand = self._here, self._above
        before = [os.fstat(fd) for fd in parent]
        self._here, self._above = _opened(name, parent), parent
        _close(grand)
        yield
        child = self._here
        if not parent:  # closed by a directory further below
            parent += _opened("..", child)
            if not all(map(os.path.samestat, before, map(os.fstat, parent))):
                _close(parent)
                raise OSError(errno.ESTALE, "its directory was moved meanwhile", name)
        self._here, self._above = parent, []
        try:
            finish(child[1])
        finally:
            _close(child)

    def close(self) -> None:
        """Close all descriptors."""
        _close(self._here)
        _close(self._above)


def _opened(name: str, pair: list[int]) -> list[int]:
    source = os.open(name, _OPEN, dir_fd=pair[0])
    try:
        return [source, os.open(name, _OPEN, dir_fd=pair[1])]
    except BaseException:
        os.close(source)
        raise


def _close(pair: list[int]) -> None:
    while pair:
        os.close(pair.pop())


def _directory(level: _Level, work: _Work) -> None:
    if not work.go_on():
        raise StagingError("not all of the container's changes were copied back: out of time")
    names = os.listdir(level.source)
    for name in set(os.listdir(level.target)).difference(names):
        if not _is_mount(name, level.target, work):
            remove(level.target, name, work.device)
    for name in names:
        if not _is_mount(name, level.target, work):
            _entry(name, level, work)


def _is_mount(name: str, target: int, work: _Work) -> bool:
    """Return whether another file system is mounted there, which was never copied."""
    there = _status(name, target)
    return there is not None and there.st_dev != work.device


def _entry(name: str, level: _Level, work: _Work) -> None:
    source, target = level.source, level.target
    new = os.stat(name, dir_fd=source, follow_symlinks=False)
    old = _status(name, target)
    if old is not None and stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode):
        remove(target, name, work.device)
        old = None
    changed = old is None or new.st_ctime_ns > work.since
    if stat.S_ISDIR(new.st_mode):
        if old is None:
            os.mkdir(name, 0o700, dir_fd=target)

        def finish(into: int) -> None:
            if changed:
                _dress(into, new, old, work)

        with level.inside(name, finish):
            _directory(level, work)
    elif not changed:
        return
    elif stat.S_ISREG(new.st_mode):
        _file(name, source, target, new, old, work)
    elif stat.S_ISLNK(new.st_mode):
        _link(name, source, target, new, old, work)
    elif stat.S_ISFIFO(new.st_mode) and old is None:
        os.mkfifo(name, stat.S_IMODE(new.st_mode), dir_fd=target)


def _file(
    name: str,
    source: int,
    target: int,
    new: os.stat_result,
    old: os.stat_result | None,
    work: _Work,
) -> None:
    """Replace a file as a whole."""
    temporary = _TEMPORARY % os.getpid()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    reading = os.open(
        name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source
    )
    try:
        remove(target, temporary, work.device)
        writing = os.open(temporary, flags, 0o600, dir_fd=target)
        try:
            left = new.st_size
            while left > 0 and (sent := os.sendfile(writing, reading, None, min(left, _PIECE))):
                left -= sent
            _attributes(reading, writing)
            _dress(writing, new, old, work)
        finally:
            os.close(writing)
        os.rename(temporary, name, src_dir_fd=target, dst_dir_fd=target)
    finally:
        os.close(reading)


def _link(
    name: str,
    source: int,
    target: int,
    new: os.stat_result,
    old: os.stat_result | None,
    work: _Work,
) -> None:
    leads_to = os.readlink(name, dir_fd=source)
    if old is not None:
        if os.readlink(name, dir_fd=target) == leads_to:
            return
        os.unlink(name, dir_fd=target)
    os.symlink(leads_to, name, dir_fd=target)
    if work.owners:
        os.chown(name, new.st_uid, new.st_gid, dir_fd=target, follow_symlinks=False)


def _dress(fd: int, new: os.stat_result, old: os.stat_result | None, work: _Work) -> None:
    """Set owner, mode and times of a file or directory; the owner first: chown(2) clears bits."""
    owner = new if work.owners else old
    mode = stat.S_IMODE(new.st_mode)
    if owner is not None:
        os.fchown(fd, owner.st_uid, owner.st_gid)
        if not work.owners and owner.st_uid != os.geteuid():
            mode &= ~(stat.S_ISUID | stat.S_ISGID)  # the container was not that user
    os.fchmod(fd, mode)
    os.utime(fd, ns=(new.st_atime_ns, new.st_mtime_ns))


def _attributes(reading: int, writing: int) -> None:
    """Copy extended attributes, as far as permitted."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(reading):
            with contextlib.suppress(OSError):
                os.setxattr(writing, name, os.getxattr(reading, name))


def _status(name: str, parent: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
