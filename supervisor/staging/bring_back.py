"""Brings what a container has changed in a copy of its root file system back to the original.

A copy is made where the nodes cannot see the root file system: an overlay, as podman's and
docker's stores have by default. Without this, what `RUN` of a build writes would be lost.

The copy was written by a container, which may be hostile, and the original is the engine's: no
link of either is followed, no other file system entered, and nothing but files, directories, links
and FIFOs is made. Everything here blocks: call it in a worker thread.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator

import msgspec

from scrun.errors import StagingError
from supervisor.staging.files import OPEN_FOLDER, remove

_PIECE = 1 << 20
_TEMPORARY = ".scrun-%d"


class _Work(msgspec.Struct, frozen=True):
    """What holds for the whole tree.

    Attributes:
        since: What has not changed after this moment is as it was (nanoseconds).
        owners: Whether files have the owners that the copy says.
        device: The original's file system.
        go_on: Whether there is still time.
    """

    since: int
    owners: bool
    device: int
    go_on: Callable[[], bool]


def bring_back(
    copied: str, original: str, since: int, *, owners: bool, go_on: Callable[[], bool]
) -> None:
    """Make a directory what its copy has become.

    Args:
        copied: The copy, as a container has left it.
        original: What it was made from.
        since: The time of the last change (`st_ctime_ns`) that the copying itself made.
        owners: Whether the copy's owners mean anything; else new files are ours, and others
            keep theirs.
        go_on: Asked now and then; when it says False the rest is left as it is.

    Raises:
        StagingError: It was not done, or not all of it.
    """
    try:
        source = os.open(copied, OPEN_FOLDER)
        try:
            target = os.open(original, OPEN_FOLDER)
            try:
                work = _Work(since, owners, os.fstat(target).st_dev, go_on)
                _directory(source, target, work)
            finally:
                os.close(target)
        finally:
            os.close(source)
    except (OSError, RecursionError) as error:
        raise StagingError(
            f"what the container wrote is not all in {original}: {error}"
        ) from error


def _directory(source: int, target: int, work: _Work) -> None:
    if not work.go_on():
        raise StagingError("what the container wrote is not all brought back: no time was left")
    names = os.listdir(source)
    for name in set(os.listdir(target)).difference(names):
        if not _is_mount(name, target, work):
            remove(target, name, work.device)
    for name in names:
        if not _is_mount(name, target, work):
            _entry(name, source, target, work)


def _is_mount(name: str, target: int, work: _Work) -> bool:
    """Tell whether something else is mounted there: that was never copied."""
    there = _status(name, target)
    return there is not None and there.st_dev != work.device


def _entry(name: str, source: int, target: int, work: _Work) -> None:
    new = os.stat(name, dir_fd=source, follow_symlinks=False)
    old = _status(name, target)
    if old is not None and stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode):
        remove(target, name, work.device)
        old = None
    changed = old is None or new.st_ctime_ns > work.since
    if stat.S_ISDIR(new.st_mode):
        if old is None:
            os.mkdir(name, 0o700, dir_fd=target)
        with _folder(name, source) as inner, _folder(name, target) as into:
            _directory(inner, into, work)
            if changed:
                _dress(into, new, old, work)
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
    """Give a file or directory its owner, mode and times; the owner first: chown(2) takes bits."""
    owner = new if work.owners else old
    mode = stat.S_IMODE(new.st_mode)
    if owner is not None:
        os.fchown(fd, owner.st_uid, owner.st_gid)
        if not work.owners and owner.st_uid != os.geteuid():
            mode &= ~(stat.S_ISUID | stat.S_ISGID)  # the container was not that user
    os.fchmod(fd, mode)
    os.utime(fd, ns=(new.st_atime_ns, new.st_mtime_ns))


def _attributes(reading: int, writing: int) -> None:
    """Copy extended attributes, as far as we may set them."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(reading):
            with contextlib.suppress(OSError):
                os.setxattr(writing, name, os.getxattr(reading, name))


@contextlib.contextmanager
def _folder(name: str, parent: int) -> Iterator[int]:
    fd = os.open(name, OPEN_FOLDER | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _status(name: str, parent: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
