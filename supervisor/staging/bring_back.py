"""Brings a container's changes back to the root file system that its engine knows.

Where the nodes cannot see that, the container has a copy, or an overlay of the engine's layers
with a directory for the difference. Without this, the files that `RUN` of a build writes would be
lost.

A container, which may be hostile, wrote the copy or the difference, and the original belongs to
the container engine. So this follows no links of either, enters no other file system, and creates
only files, directories, links and FIFOs. Everything here blocks: call it in a worker thread.
"""

import os
import stat
from collections.abc import Callable, Sequence

import msgspec

from scrun.core.errors import StagingError
from scrun.core.trees import remove
from scrun.supervisor.staging.copies import (
    OPEN,
    READ,
    WRITE,
    copy_attributes,
    copy_content,
)
from scrun.supervisor.staging.growth import check_room
from scrun.supervisor.staging.hard_links import HardLinks
from scrun.supervisor.staging.levels import Level
from scrun.supervisor.staging.marks import Marks, is_deletion

_TEMPORARY = ".scrun-%d"


class _Work(msgspec.Struct, frozen=True):
    """The parameters for the whole tree.

    Attributes:
        since: Files without a change after this time are unchanged (nanoseconds).
        owners: Whether to set the owners of the copy.
        device: The original's file system.
        go_on: Returns whether there is time left.
        links: The files with several names.
        marks: What says in a difference that something is removed; None for a whole copy.
    """

    since: int
    owners: bool
    device: int
    go_on: Callable[[], bool]
    links: HardLinks
    marks: Marks | None = None


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
        level = Level(copied, original)
        try:
            work = _Work(since, owners, os.fstat(level.target).st_dev, go_on, HardLinks())
            _directory(level, work)
        finally:
            level.close()
    except (OSError, RecursionError) as error:
        raise StagingError(
            f"not all of the container's changes are in {original}: {error}"
        ) from error


def bring_difference_back(
    uppers: Sequence[str],
    rootfs: str,
    original: str,
    since: int,
    *,
    marks: Marks,
    owners: bool,
    whole: bool,
    go_on: Callable[[], bool],
) -> None:
    """Make in a directory the changes that a container has made in an overlay of it.

    Args:
        uppers: Each has the difference of the root directory, or of each directory in that, by its
            name. Of what several have changed, the last one's counts.
        rootfs: The container's root directory; what is not in `uppers` is there as a whole.
        original: The directory that was the overlay's lower part.
        since: See `bring_back`; for what is in `rootfs`.
        marks: What says that something is removed.
        owners: See `bring_back`.
        whole: Whether the root directory itself was an overlay.
        go_on: See `bring_back`.

    Raises:
        StagingError: Changes are missing in the original.
    """
    try:
        check_room(uppers, original, marks)
        work = _Work(since, owners, os.stat(original).st_dev, go_on, HardLinks())
        mounted = [""] if whole else os.listdir(uppers[0])
        if not whole:
            level = Level(rootfs, original)
            try:
                _root(level, work, frozenset(mounted))
            finally:
                level.close()
        for upper in uppers:
            for name in mounted:
                _mounted(os.path.join(upper, name), os.path.join(original, name), work, marks)
    except (OSError, RecursionError) as error:
        raise StagingError(
            f"not all of the container's changes are in {original}: {error}"
        ) from error


def _root(level: Level, work: _Work, mounted: frozenset[str]) -> None:
    """Bring back what is in the root directory, without the directories that were mounted."""
    names = os.listdir(level.source)
    for name in set(os.listdir(level.target)).difference(names, mounted):
        if not _is_mount(name, level.target, work):
            remove(level.target, name, work.device)
    for name in mounted.symmetric_difference(names).difference(mounted):
        if not _is_mount(name, level.target, work):
            _entry(name, level, work)


def _mounted(upper: str, original: str, whole: _Work, marks: Marks) -> None:
    """Bring back what was changed in one directory."""
    if os.lstat(upper).st_ctime_ns <= whole.since and not os.listdir(upper):
        return
    level = Level(upper, original)
    try:
        if os.fstat(level.target).st_dev != whole.device:
            return
        # no file is in two of them: they are different overlays
        work = msgspec.structs.replace(whole, marks=marks, links=HardLinks())
        _directory(level, work)
        copy_attributes(level.source, level.target)
        new, old = os.fstat(level.source), os.fstat(level.target)
        if _differs(new, old, whole):
            _dress(level.target, new, old, whole)
    finally:
        level.close()


def _directory(level: Level, work: _Work) -> None:
    if not work.go_on():
        raise StagingError("not all of the container's changes were copied back: out of time")
    names, removed = os.listdir(level.source), list[str]()
    if work.marks is not None:
        names, removed = work.marks.parted(names)
    if work.marks is None or work.marks.hide_all(level.source):
        removed = [*set(os.listdir(level.target)).difference(names)]
    for name in removed:
        if not _is_mount(name, level.target, work):
            remove(level.target, name, work.device)
    for name in names:
        if not _is_mount(name, level.target, work):
            _entry(name, level, work)


def _is_anew(name: str, source: int, new: os.stat_result, work: _Work) -> bool:
    """Return whether a directory was removed and made again: for engines that is a change."""
    if work.marks is None or not stat.S_ISDIR(new.st_mode):
        return False
    folder = os.open(name, OPEN, dir_fd=source)
    try:
        return work.marks.hide_all(folder)
    finally:
        os.close(folder)


def _is_mount(name: str, target: int, work: _Work) -> bool:
    """Return whether another file system is mounted there, which was never copied."""
    there = _status(name, target)
    return there is not None and there.st_dev != work.device


def _entry(name: str, level: Level, work: _Work) -> None:
    source, target = level.source, level.target
    new = os.stat(name, dir_fd=source, follow_symlinks=False)
    old = _status(name, target)
    if work.marks is not None and is_deletion(new):
        remove(target, name, work.device)
        return
    if old is not None and (
        stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode) or _is_anew(name, source, new, work)
    ):
        remove(target, name, work.device)
        old = None
    changed = work.marks is not None or old is None or new.st_ctime_ns > work.since
    if stat.S_ISDIR(new.st_mode):
        if old is None:
            os.mkdir(name, 0o700, dir_fd=target)

        def finish(source: int, target: int) -> None:
            if changed:
                copy_attributes(source, target)
            if changed and (old is None or _differs(new, old, work)):
                _dress(target, new, old, work)

        with level.inside(name, finish):
            _directory(level, work)
    elif not changed:
        return
    elif stat.S_ISREG(new.st_mode):
        _file(name, level, new, old, work)
    elif stat.S_ISLNK(new.st_mode):
        _link(name, source, target, new, old, work)
    elif stat.S_ISFIFO(new.st_mode):
        _fifo(name, target, new, old, work)


def _file(
    name: str, level: Level, new: os.stat_result, old: os.stat_result | None, work: _Work
) -> None:
    """Replace a file as a whole, or by another name of one that was."""
    source, target = level.source, level.target
    temporary = _TEMPORARY % os.getpid()
    if work.links.link(level, name, new, temporary):
        return
    reading = os.open(name, READ, dir_fd=source)
    try:
        remove(target, temporary, work.device)
        writing = os.open(temporary, WRITE, 0o600, dir_fd=target)
        try:
            copy_content(reading, writing, new.st_size)
            _dress(writing, new, old, work)
        except BaseException:
            remove(target, temporary, work.device)  # it may be what fills the disk
            raise
        finally:
            os.close(writing)
        os.rename(temporary, name, src_dir_fd=target, dst_dir_fd=target)
        work.links.remember(level, name, new)
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
    if old is not None and os.readlink(name, dir_fd=target) != leads_to:
        os.unlink(name, dir_fd=target)
        old = None
    if old is None:
        os.symlink(leads_to, name, dir_fd=target)
    owner = (new.st_uid, new.st_gid)
    if work.owners and (old is None or (old.st_uid, old.st_gid) != owner):
        os.chown(name, *owner, dir_fd=target, follow_symlinks=False)


def _fifo(
    name: str, target: int, new: os.stat_result, old: os.stat_result | None, work: _Work
) -> None:
    remove(target, name, work.device)
    os.mkfifo(name, 0o600, dir_fd=target)
    fd = os.open(name, READ, dir_fd=target)
    try:
        _dress(fd, new, old, work)
    finally:
        os.close(fd)


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


def _differs(new: os.stat_result, old: os.stat_result, work: _Work) -> bool:
    """Return whether a directory has changed itself: on an overlay, to touch it is a change."""
    return (new.st_mode, new.st_mtime_ns) != (old.st_mode, old.st_mtime_ns) or (
        work.owners and (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid)
    )


def _status(name: str, parent: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
