"""Brings a container's changes back to where its engine or its user knows the files.

Where the nodes cannot see a root file system, the container has a copy, or an overlay of the
engine's layers with a directory for the difference. Without this, the files that `RUN` of a build
writes would be lost. A volume that the nodes cannot see is a copy as well, and other programs may
change the original meanwhile: what both have changed stays, and is named.

A container, which may be hostile, wrote the copy or the difference, and the original belongs to
the container engine. So this follows no links of either, enters no other file system, and creates
only files, directories, links and FIFOs. Everything here blocks: call it in a worker thread.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from scrun.core.errors import StagingError
from scrun.core.trees import everything_below, remove
from scrun.supervisor.staging.copies import (
    OPEN,
    READ,
    WRITE,
    Vanished,
    copy_attributes,
    copy_content,
    from_the_living,
    open_regular,
)
from scrun.supervisor.staging.layers import Whiteouts, check_room, is_deletion
from scrun.supervisor.staging.levels import HardLinks, Level

TEMPORARY = ".scrun-writing"
"""The name of a file while it is written; the next copy removes it first."""

NEVER = 1 << 63
"""A time after which nothing changes (nanoseconds)."""

_UNFINISHED = 0o1700  # the mode of a directory while it is filled; nobody else's has that

_NOT_CARRIED = (stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK)


class _Work(msgspec.Struct, frozen=True):
    """The parameters for the whole tree; see `merge`.

    Attributes:
        marks: What says in a difference that something is removed; None for a whole copy.
        merged: Receives the entries that are not carried over.
        source_device: The copy's file system; None: it may have mounts.
    """

    since: int
    owners: bool
    device: int
    go_on: Callable[[], bool]
    links: HardLinks
    marks: Whiteouts | None = None
    others_since: int = NEVER
    known: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    inwards: bool = False
    merged: "Merged" = msgspec.field(default_factory=lambda: Merged([], [], {}))
    source_device: int | None = None
    count: Callable[[int], None] = lambda size: None


class Merged(NamedTuple):
    """The result of a merge, by relative paths in ASCII.

    What both have changed, and not to the same, conflicts. A socket, a device, or something that
    is mounted there is left out. `folders` are the inodes of directories, in the copy and in the
    original.
    """

    conflicts: list[str]
    left_out: list[str]
    folders: dict[str, tuple[int, int]]


def bring_back(
    copied: str, original: str, since: int, *, owners: bool, go_on: Callable[[], bool]
) -> None:
    """Make a directory equal to its changed copy.

    Args:
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


def merge(
    copied: str,
    original: str,
    names: Sequence[str],
    *,
    since: int,
    others_since: int,
    owners: bool,
    go_on: Callable[[], bool],
    count: Callable[[int], None],
    known: Mapping[str, tuple[int, int]],
    inwards: bool = False,
) -> Merged:
    """Carry over the changes of a directory to another one, in which others change files.

    Sockets, devices and what is mounted below are not carried over, nor removed. After an OSError,
    StagingError or RecursionError it is incomplete; but each file that was carried over is whole.

    Args:
        names: The entries that count; empty: all, and the directories' own owner, mode and times.
        since: See `bring_back`; -1: everything is new.
        others_since: Changes in the other directory after this time are others' (nanoseconds).
        count: Called with the bytes of each file; may raise.
        known: The directories when both were last alike; see `Merged`.
        inwards: Whether the other one is the copy. Then what containers have renamed stays, and a
            file of the same size, mode and time is not written again: they may have it open.
    """
    level = Level(copied, original)
    try:
        work = _Work(
            since,
            owners,
            os.fstat(level.target).st_dev,
            go_on,
            HardLinks(),
            others_since=others_since,
            known=known,
            inwards=inwards,
            source_device=os.fstat(level.source).st_dev,
            count=count,
        )
        if names:
            for name in names:
                there = _status(name, level.target)  # it may be a mount itself
                of_it = (
                    work if there is None else msgspec.structs.replace(work, device=there.st_dev)
                )
                _entry(name, level, of_it)
            return work.merged
        new, old = os.fstat(level.source), os.fstat(level.target)
        if _known("", work) not in ((0, 0), (new.st_ino, old.st_ino)):
            raise StagingError("it is a different directory now")
        _remember(level, work)
        _directory(level, work)
        if new.st_ctime_ns <= since or _is_dressed_by_others(".", level, new, old, work):
            return work.merged
        if _differs(new, old := os.fstat(level.target), work):
            copy_attributes(level.source, level.target)
            _dress(level.target, new, old, work)
        return work.merged
    finally:
        level.close()


def bring_difference_back(
    uppers: Sequence[str],
    rootfs: str,
    original: str,
    since: int,
    *,
    marks: Whiteouts,
    owners: bool,
    whole: bool,
    go_on: Callable[[], bool],
) -> None:
    """Make in a directory the changes that a container has made in an overlay of it.

    Args:
        uppers: Each has the difference of the root directory, or of each directory in that, by its
            name. Of what several have changed, the last one's counts.
        rootfs: The container's root directory; it has all that is not in `uppers`.
        since: See `bring_back`; for what is in `rootfs`.
        whole: Whether the root directory itself was an overlay.
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
    """Bring back the entries of the root directory, without the directories that were mounted."""
    names = os.listdir(level.source)
    for name in set(os.listdir(level.target)).difference(names, mounted):
        if not _is_mount(name, level.target, work):
            remove(level.target, name, work.device)
    for name in mounted.symmetric_difference(names).difference(mounted):
        if not _is_mount(name, level.target, work):
            _entry(name, level, work)


def _mounted(upper: str, original: str, whole: _Work, marks: Whiteouts) -> None:
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
            _remove(name, level, work)
    for name in names:
        if not _is_mount(name, level.target, work):
            # another container that goes on has removed it: there is nothing to carry over
            with contextlib.suppress(Vanished):
                _entry(name, level, work)


def _remove(name: str, level: Level, work: _Work) -> None:
    """Remove what the container has removed, unless others have made or changed it meanwhile."""
    if work.others_since != NEVER:
        status = _status(name, level.target)
        if status is None or stat.S_IFMT(status.st_mode) in _NOT_CARRIED or name == TEMPORARY:
            return
        if status.st_ctime_ns > work.others_since:
            return
        if stat.S_ISDIR(status.st_mode) and not _may_go(name, level.target, work):
            work.merged.conflicts.append(_told(level, name))
            return
    remove(level.target, name, work.device)


def _may_go(name: str, parent: int, work: _Work) -> bool:
    """Return whether nobody has changed anything in a directory that the container removed."""
    return all(
        each.st_ctime_ns <= work.others_since and stat.S_IFMT(each.st_mode) not in _NOT_CARRIED
        for each in everything_below(f"/proc/self/fd/{parent}/{name}")
    )


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
    with from_the_living(name):
        new = os.stat(name, dir_fd=source, follow_symlinks=False)
    old = _status(name, target)
    if work.marks is not None and is_deletion(new):
        remove(target, name, work.device)
        return
    if work.others_since != NEVER:
        if name == TEMPORARY:
            return
        if stat.S_IFMT(new.st_mode) in _NOT_CARRIED or new.st_dev != work.source_device:
            work.merged.left_out.append(_told(level, name))
            return
        if old is None and not _is_new(name, new, source, work):
            return  # others have removed it
        if old is not None and _is_in_conflict(name, level, new, old, work):
            work.merged.conflicts.append(_told(level, name))
            return
    if old is not None and (
        stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode) or _is_anew(name, source, new, work)
    ):
        remove(target, name, work.device)
        old = None
    changed = work.marks is not None or old is None or new.st_ctime_ns > work.since
    if stat.S_ISDIR(new.st_mode):
        below = work if work.others_since == NEVER else _of_folder(name, level, new, old, work)
        if below is None:
            if not work.inwards and _is_new(name, new, source, work):
                work.merged.conflicts.append(_told(level, name))
            return
        if old is None:
            os.mkdir(name, _UNFINISHED, dir_fd=target)
        else:
            changed = changed and not _is_dressed_by_others(name, level, new, old, work)

        def finish(source: int, target: int) -> None:
            if changed:
                copy_attributes(source, target)
            if changed and (old is None or _differs(new, old, work)):
                _dress(target, new, old, work)

        with level.inside(name, finish):
            if os.fstat(level.source).st_ino == new.st_ino:
                _remember(level, work)
                _directory(level, below)
    elif not changed or (work.inwards and old is not None and _looks_same(new, old)):
        return
    elif stat.S_ISREG(new.st_mode):
        _file(name, level, new, old, work)
    elif stat.S_ISLNK(new.st_mode):
        _link(name, source, target, new, old, work)
    elif stat.S_ISFIFO(new.st_mode):
        _fifo(name, target, new, old, work)


def _of_folder(
    name: str, level: Level, new: os.stat_result, old: os.stat_result | None, work: _Work
) -> _Work | None:
    """Return how a directory is carried over; None if others have put another one there.

    What is in a directory that was renamed has kept its times.
    """
    source, target = _known(_told(level, name), work)
    if old is not None and target and target != old.st_ino:
        return None
    since = work.since if source == new.st_ino else -1
    others_since = work.others_since if old is None or target else -1
    return msgspec.structs.replace(work, since=since, others_since=others_since)


def _known(path: str, work: _Work) -> tuple[int, int]:
    """Return the inodes that a directory had, in the source and in the target; or zeros."""
    in_copy, in_original = work.known.get(path, (0, 0))
    return (in_original, in_copy) if work.inwards else (in_copy, in_original)


def _remember(level: Level, work: _Work) -> None:
    source, target = os.fstat(level.source).st_ino, os.fstat(level.target).st_ino
    pair = (target, source) if work.inwards else (source, target)
    work.merged.folders[_in_ascii(level.names)] = pair


def _is_new(name: str, new: os.stat_result, source: int, work: _Work) -> bool:
    """Return whether the container has changed something, or anything in a directory."""
    return new.st_ctime_ns > work.since or (
        stat.S_ISDIR(new.st_mode)
        and any(
            each.st_ctime_ns > work.since
            for each in everything_below(f"/proc/self/fd/{source}/{name}")
        )
    )


def _is_in_conflict(
    name: str, level: Level, new: os.stat_result, old: os.stat_result, work: _Work
) -> bool:
    """Return whether both have changed something, and not to the same."""
    if stat.S_ISDIR(new.st_mode) and stat.S_ISDIR(old.st_mode):
        return False  # what is in them is looked at
    if not _is_new(name, new, level.source, work):
        return False
    if stat.S_ISDIR(old.st_mode):
        return old.st_ctime_ns > work.others_since or not _may_go(name, level.target, work)
    if stat.S_IFMT(old.st_mode) in _NOT_CARRIED:
        return True
    if old.st_ctime_ns <= work.others_since:
        return False
    if stat.S_IFMT(new.st_mode) != stat.S_IFMT(old.st_mode):
        return True
    if stat.S_ISLNK(new.st_mode):
        with from_the_living(name):
            leads_to = os.readlink(name, dir_fd=level.source)
        return leads_to != os.readlink(name, dir_fd=level.target)
    return (new.st_size, new.st_mtime_ns) != (old.st_size, old.st_mtime_ns)


def _looks_same(new: os.stat_result, old: os.stat_result) -> bool:
    one, other = ((each.st_mode, each.st_size, each.st_mtime_ns) for each in (new, old))
    return one == other


def _file(
    name: str, level: Level, new: os.stat_result, old: os.stat_result | None, work: _Work
) -> None:
    """Replace a file by a whole copy, or by another name of one that was copied."""
    if work.links.link(level, name, new, TEMPORARY):
        return
    work.count(min(new.st_size, new.st_blocks * 512))
    reading = open_regular(name, level.source)
    try:
        if not _replaced(name, level.target, reading, new, old, work):
            _rewrite(name, level.target, reading, new)
        work.links.remember(level, name, new)
    finally:
        os.close(reading)


def _replaced(
    name: str,
    target: int,
    reading: int,
    new: os.stat_result,
    old: os.stat_result | None,
    work: _Work,
) -> bool:
    """Replace a file by rename; return False if only its content can be replaced.

    That is so where it is a mount itself, in a directory to which the user cannot write, or
    somebody else's.
    """
    try:
        remove(target, TEMPORARY, os.fstat(target).st_dev)
        writing = os.open(TEMPORARY, WRITE, 0o600, dir_fd=target)
    except OSError as error:
        if old is not None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return False
        raise
    try:
        copy_content(reading, writing, new.st_size)
        _dress(writing, new, old, work)
        os.rename(TEMPORARY, name, src_dir_fd=target, dst_dir_fd=target)
    except BaseException as error:
        remove(target, TEMPORARY, os.fstat(target).st_dev)  # it may be what fills the disk
        in_place = (errno.EBUSY,) if work.owners else (errno.EBUSY, errno.EPERM)
        if old is not None and isinstance(error, OSError) and error.errno in in_place:
            return False
        raise
    finally:
        os.close(writing)
    return True


def _rewrite(name: str, target: int, reading: int, new: os.stat_result) -> None:
    writing = open_regular(name, target, os.O_WRONLY)
    try:
        if new.st_size:
            os.posix_fallocate(writing, 0, new.st_size)  # before anything is overwritten
        os.lseek(reading, 0, os.SEEK_SET)
        copy_content(reading, writing, new.st_size)
        os.ftruncate(writing, new.st_size)
        os.utime(writing, ns=(new.st_atime_ns, new.st_mtime_ns))
    finally:
        os.close(writing)


def _link(
    name: str,
    source: int,
    target: int,
    new: os.stat_result,
    old: os.stat_result | None,
    work: _Work,
) -> None:
    with from_the_living(name):
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


def _is_dressed_by_others(
    name: str, level: Level, new: os.stat_result, old: os.stat_result, work: _Work
) -> bool:
    """Return whether a directory's mode and owner may be others'."""
    if old.st_ctime_ns <= work.others_since or stat.S_IMODE(old.st_mode) == _UNFINISHED:
        return False
    if new.st_mode != old.st_mode or (
        work.owners and (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid)
    ):
        work.merged.conflicts.append(_told(level, name))
        return True
    return False


def _told(level: Level, name: str) -> str:
    """Return how a path is told to people, and kept in a file: it may be any bytes."""
    return _in_ascii((*level.names, name))


def _in_ascii(names: Sequence[str]) -> str:
    return "/".join(ascii(name)[1:-1] for name in names)


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
