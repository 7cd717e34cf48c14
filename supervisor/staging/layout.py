"""Writes the part of a staged bundle that a node mounts as overlays.

A shim mounts one overlay, on `rootfs`. Otherwise the runtime mounts one for each directory in the
root directory: crun before 1.22 mounts nothing on that itself.

::

    rootfs/NAME             where the runtime mounts the directory NAME of the root directory;
                            the files and links of that are here as copies
    overlay/l/N             links to the layers: short names in the options of the mounts
    overlay/mine/N          a copy of a layer that no image has, such as the container's own
    overlay/images/N        where the node mounts the squashfs image of a layer
    overlay/own/            copies of what the container's one user could not use
    overlay/upper           what the container writes; or
    overlay/upper/NAME      what it writes to each directory
    overlay/work            the kernel's own; or
    overlay/work/NAME       for each directory
    overlay/one             is there if there is only one overlay
    overlay/by-fuse         is there if fuse-overlayfs mounts that
    overlay/task-N/         has these two for a task, if there are several
    overlay/place           has the nodes' directories for these two, if they are there
    overlay/trial/          for an attempt to mount, on the node

Of a directory that is mounted read-only, an overlay has to be so from the start. Then the runtime
can make no mount point in it, so those that are missing are made in the directory for what is
written.

Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from scrun.core.trees import everything_below
from scrun.supervisor.contracts.staged import OVERLAY, with_place
from scrun.supervisor.core.files import write
from scrun.supervisor.staging.copies import (
    OPEN,
    CopyRoom,
    TreeCopy,
    copy_foreign,
    dress,
    foreign_in,
)
from scrun.supervisor.staging.layers import Unusable, folder_of, opaque, options_of
from scrun.supervisor.staging.mounts import is_bind
from scrun.supervisor.staging.on_node import TRIAL, Looks, Trial
from scrun.supervisor.staging.ways import BundleRefused, RootFilesystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrun.supervisor.staging.layers import TopLevel
    from scrun.supervisor.staging.stored import Copies


ROOTFS = "rootfs"
UPPER = "upper"
PLACE = "place"
ONE = "one"
_WHOLE = b"whole"  # in that file: what is written begins with the container's own layer
BY_FUSE = "by-fuse"
_TASK = "task-"
_SMALL = (1 << 20, 200)  # bytes and entries
_DEEPEST = 300  # two descriptors each


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    fd = os.open(folder, OPEN)
    try:
        yield fd
    finally:
        os.close(fd)


class Layout:
    """The files of one staged bundle.

    Attributes:
        options: The options of each mount, by the name in the root directory; none if there is
            only one.
        directory: The directory with all but the mount point.
        images: The squashfs images among the layers, and where the node is to mount them.
    """

    def __init__(
        self,
        rootfs: RootFilesystem,
        directory: str,
        top: TopLevel | None,
        stored: Copies | None,
    ) -> None:
        """`top`: the root directory, if the runtime mounts an overlay for each directory in it."""
        self.options: dict[str, list[str]] = {}
        self._rootfs = rootfs
        self._bundle = directory
        self._staged = os.path.join(directory, ROOTFS)
        self.directory = os.path.join(directory, OVERLAY)
        overlay = self._overlay = rootfs.overlay
        self._stored = stored
        there = stored.there if stored else {}
        self.from_store = bool(there)
        self._layers = [there.get(number, layer) for number, layer in enumerate(overlay.layers)]
        self._packed = frozenset(there if stored and stored.are_images else ())
        self.images: list[tuple[str, str]] = []
        self._top = top
        self._read_only = rootfs.read_only
        self._written: list[str] = []
        self._tasks: Sequence[str] = ()
        self._owners = rootfs.owners
        self._hidden = {
            posixpath.normpath(mount["destination"].lstrip("/"))
            for mount in rootfs.config.get("mounts") or []
        }

    def _path(self, *names: str) -> str:
        return os.path.join(self.directory, *filter(None, names))

    def write(
        self, cache: str, unseen: frozenset[int], *, on_node: bool, by_fuse: bool = False
    ) -> None:
        """Write everything, and decide on the options.

        Args:
            unseen: The numbers of layers that the node cannot use.
            on_node: Whether what the container writes will be on its nodes; if not, the kernel has
                to mark here what it deletes.
            by_fuse: Whether fuse-overlayfs mounts it, which marks that by names.
        """
        os.mkdir(self.directory, 0o700)
        for name in ("l", "mine", "own", "images", *TRIAL):
            os.mkdir(self._path(name), 0o700)
        for number in sorted(self._packed):
            point = self._path("images", str(number))
            os.mkdir(point, 0o700)
            self.images.append((self._layers[number], point))
            self._layers[number] = point
        self._make_written(on_node=on_node)
        if not (on_node or by_fuse or self._read_only):
            self._try_attributes()
        if 0 not in unseen:
            self._copy_own_layer()
        self._copy_layers(unseen)
        for number, layer in enumerate(self._layers):
            os.symlink(layer, self._path("l", str(number)))
        whole = self._copy_strangers(cache)
        os.mkdir(self._staged, 0o700)
        if self._top is None:
            begun = not (on_node or by_fuse or self._read_only) and self._begin_with_own_layer()
            write(self._path(ONE), _WHOLE if begun else b"")
            if by_fuse:
                write(self._path(BY_FUSE), b"")
            for folder in self._written:
                self._dress(self._path(folder, UPPER), self._rootfs.path)
        else:
            self._each_directory(self._top, whole)
            self._others(self._top)
        self._dress(self._staged, self._rootfs.path)
        if self._read_only:
            self._make_mount_points()

    def _each_directory(self, top: TopLevel, whole: frozenset[str]) -> None:
        short = folder_of(self._path("l"), self._bundle, len(self._layers))
        # what is in an image is not seen here
        packed = {f"{short}/{number}" for number in self._packed}
        for name, numbers in top.directories.items():
            below = [] if name in whole else [f"{short}/{number}" for number in numbers]
            layers = [self._path("own"), *below]
            self._directory_of_root(
                top,
                name,
                [one for one in layers if one in packed or os.path.isdir(f"{one}/{name}")],
            )

    def _make_mount_points(self) -> None:
        mounts = self._rootfs.config.get("mounts") or []
        find = in_directory(self._rootfs.path)
        if self._stored is not None:
            paths = [mount["destination"] for mount in mounts]
            find = self._stored.look_for(paths, self._path("look")) or find
        whole = self._top is None
        make_mount_points(mounts, find, self._path(UPPER), owners=self._owners, whole=whole)

    def _make_written(self, *, on_node: bool) -> None:
        """Make the directories for what is written: of each task, or one to be copied there."""
        if not (self._read_only or on_node or self._rootfs.tasks == 1):
            self._written = [f"{_TASK}{number}" for number in range(self._rootfs.tasks)]
            self._tasks = [f"{folder}/" for folder in self._written]
            for folder in self._written:
                for name in ("", UPPER, "work"):
                    os.mkdir(self._path(folder, name), 0o700)
            return
        self._written = [""]
        for name in (UPPER, "work"):
            os.mkdir(self._path(name), 0o700)

    def _try_attributes(self) -> None:
        """Raise Refused if deletions of whole directories could not be marked."""
        name = "user.scrun" if self._rootfs.rootless else "trusted.scrun"
        try:
            os.setxattr(self._path("own"), name, b"y")
        except OSError as error:
            where = f"extended attributes in {self.directory}"
            raise BundleRefused(f"need {where}: {error.strerror}") from error

    def _copy_own_layer(self) -> None:
        """Copy the container's own layer if it is small: it may be where the nodes do not look.

        Images can be in a store that all machines share, and containers on a local disk.
        """
        mark = opaque(users=self._overlay.users)
        copied = self._path("mine", "0")
        os.mkdir(copied, 0o700)
        with contextlib.suppress(Unusable, PermissionError):  # else it is mounted as it is
            with _opened(self._layers[0]) as source, _opened(copied) as target:
                copy = TreeCopy(target, CopyRoom(*_SMALL), owners=self._owners, opaque=mark)
                copy.all(source, target)
            self._layers[0] = copied

    def _begin_with_own_layer(self) -> bool:
        """Copy the container's own layer to what is written, if it is small; tell whether it is.

        So there is all that differs from the image. It stays below as well, or what the container
        removes of it would have no mark.
        """
        own, mark = self._path("mine", "0"), opaque(users=self._rootfs.rootless)
        if self._layers[0] != own or self._overlay.plain or self._written != [""]:
            return False
        try:
            with _opened(own) as source, _opened(self._path(UPPER)) as target:
                copy = TreeCopy(target, CopyRoom(*_SMALL), owners=self._owners, opaque=mark)
                copy.all(source, target)
        except (Unusable, PermissionError):
            return False
        return self._overlay.users == self._rootfs.rootless

    def _copy_layers(self, unseen: frozenset[int]) -> None:
        """Copy what the node cannot use and no image has: its own layer, and small ones."""
        there = self._stored.there if self._stored else {}
        for number in sorted(unseen.difference(there)):
            layer = self._overlay.layers[number]
            if self._stored is None or (number and not _is_small(layer)):
                raise Unusable(f"are only on this machine, and no record has a digest of {layer}")
            copied = self._path("mine", str(number))
            os.mkdir(copied, 0o700)
            if self._overlay.plain:
                image = self._overlay.layers[1]
                write_difference(layer, image, copied, CopyRoom(), owners=self._owners)
            else:
                any_size = CopyRoom(sys.maxsize, sys.maxsize, self._stored.wait)
                mark = opaque(users=self._rootfs.rootless)
                with _opened(layer) as source, _opened(copied) as target:
                    copy = TreeCopy(
                        *(target, any_size),
                        owners=self._owners,
                        opaque=mark,
                        by_fuse=self._overlay.by_fuse,
                        deepest=_DEEPEST,
                    )
                    copy.all(source, target)
            self._layers[number] = copied

    def _copy_strangers(self, cache: str) -> frozenset[str]:
        """Copy files that the one user cannot use; return the directories copied as a whole."""
        if self._owners:
            return frozenset()
        ours = os.path.join(self.directory, "")
        there = self._stored.there.values() if self._stored else ()  # with one owner, too
        layers = [one for one in self._layers if one not in there and not one.startswith(ours)]
        changes = self._overlay.layers[0] in layers
        foreign = foreign_in(layers, cache, changes=changes)
        whole = self._top is None
        return copy_foreign(foreign, self._rootfs.path, self._path("own"), whole=whole)

    def _directory_of_root(self, top: TopLevel, name: str, layers: list[str]) -> None:
        mount_point = os.path.join(self._staged, name)
        uppers = [self._path(folder, UPPER, name) for folder in self._written]
        works = [self._path(folder, "work", name) for folder in self._written]
        for path in (mount_point, *uppers, *works):
            os.mkdir(path, 0o700)
        for path in (mount_point, *uppers):  # the upper's are those of the mounted directory
            self._dress(path, os.path.join(self._rootfs.path, name))
        paths = [os.path.join(layer, name) for layer in layers]
        written: tuple[str, str] | None = self._path(UPPER, name), self._path("work", name)
        if self._read_only:
            paths.insert(0, self._path(UPPER, name))
            written = None
        if top.directories[name] and name not in self._hidden:
            self.options[name] = options_of(paths, written, users=self._rootfs.rootless)

    def _dress(self, path: str, like: str) -> None:
        status = os.lstat(like)
        if self._owners:
            os.chown(path, status.st_uid, status.st_gid)
        os.chmod(path, stat.S_IMODE(status.st_mode))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _others(self, top: TopLevel) -> None:
        with _opened(self._rootfs.path) as source, _opened(self._staged) as target:
            copy = TreeCopy(target, CopyRoom(), owners=self._owners)
            for name in map(os.fsencode, top.others):
                copy.entry(source, target, name)

    def put(self, places: Sequence[str]) -> None:
        """Have what is written in directories of the nodes, one for each task."""
        if not all(places):
            raise Unusable("cannot be mounted on the node: it made no directory")
        write(self._path(PLACE), "\n".join(places).encode())
        if self._top is None:
            self._tasks = [f"{place}/" for place in places]
        elif len(places) == 1:  # no engine gives each task its own
            here = os.path.join(self.directory, "")
            for name, words in self.options.items():
                self.options[name] = with_place(words, here, places[0])

    @property
    def roots(self) -> list[tuple[str, str, str]]:
        """See `supervisor.contracts.target.Mounting`; relative paths, as options have a page."""
        lower = [UPPER] if self._read_only else []
        lower += ["own", *(f"l/{number}" for number in range(len(self._layers)))]
        found = []
        for place in self._tasks or [""]:
            written = None if self._read_only else (f"{place}{UPPER}", f"{place}work")
            options = options_of(lower, written, users=self._rootfs.rootless)
            found.append((self._staged, self.directory, ",".join(options)))
        return found

    @property
    def looks(self) -> Looks:
        store = self._stored.folder if self._stored and self._stored.is_seen else None
        return Looks(self.directory, self._layers, self._packed, store)

    @property
    def places(self) -> tuple[str, ...]:
        """The directories in the staged bundle with what the tasks write, if they are several."""
        return tuple(map(self._path, filter(None, self._written)))

    def trial(self, *, on_node: bool) -> Trial:
        """Return how the node tries the mount with the most layers."""
        lower = max(self.options.values(), key=lambda words: len(words[0]), default=[""])[0]
        return Trial(
            self.looks, lower, rootless=self._rootfs.rootless, images=bool(self._packed),
            read_only=self._read_only, on_node=on_node, several=self._rootfs.tasks > 1,
        )  # fmt: skip


def uppers_in(overlay: str) -> list[str]:
    """Return the directories of a staged bundle that have what the tasks have written."""
    try:
        names = os.listdir(overlay)
    except FileNotFoundError:
        names = []
    tasks = [name for name in names if name.startswith(_TASK)]
    tasks.sort(key=lambda name: int(name.removeprefix(_TASK)))
    found = [os.path.join(overlay, name, UPPER) for name in ("", *tasks)]
    return [path for path in found if os.path.isdir(path)]


def difference_in(overlay: str) -> str:
    """Return the directory with all that a container differs by from its image; "" if none has.

    Args:
        overlay: The directory of its staged bundle.
    """
    try:
        with open(os.path.join(overlay, ONE), "rb") as file:
            is_whole = file.read() == _WHOLE
    except OSError:
        return ""
    return os.path.join(overlay, UPPER) if is_whole else ""


def _is_small(layer: str) -> bool:
    size, entries = _SMALL
    for status in everything_below(layer):
        size -= status.st_size if stat.S_ISREG(status.st_mode) else 0
        entries -= 1
        if size < 0 or entries < 0:
            return False
    return True


_DEEPEST_OF_TWO = 100  # three descriptors each


def write_difference(own: str, image: str, into: str, room: CopyRoom, *, owners: bool) -> None:
    """Write into an empty directory, as a layer, what makes another directory of an image's.

    Files with the same size, time and permissions are the same: podman's copies keep them.
    Unusable as for `TreeCopy.all`.
    """
    opened: list[int] = []
    try:
        opened.extend(os.open(path, OPEN) for path in (own, image, into))
        copy = TreeCopy(opened[2], room, owners=owners, deepest=_DEEPEST_OF_TWO)
        _compare(copy, (opened[0], opened[1], opened[2]), b"")
    finally:
        for fd in opened:
            os.close(fd)


def _compare(copy: TreeCopy, folders: tuple[int, int, int], path: bytes) -> bool:
    own, image, into = folders
    copy.check_depth(path)
    changed = False
    mine, theirs = (set(map(os.fsencode, os.listdir(folder))) for folder in (own, image))
    for name in theirs - mine:
        copy.room.take(0)
        os.mknod(name, stat.S_IFCHR, dir_fd=into)
        changed = True
    for name in mine:
        new = os.stat(name, dir_fd=own, follow_symlinks=False)
        old = None
        if name in theirs:
            old = os.stat(name, dir_fd=image, follow_symlinks=False)
        if stat.S_ISDIR(new.st_mode):
            changed |= _folder(copy, name, folders, (new, old), path + name + b"/")
        elif old is None or not _same(name, own, image, new, old):
            copy.entry(own, into, name, path)
            changed = True
    return changed


def _folder(
    copy: TreeCopy,
    name: bytes,
    folders: tuple[int, int, int],
    statuses: tuple[os.stat_result, os.stat_result | None],
    path: bytes,
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
            changed = _compare(copy, (opened[0], opened[2], opened[1]), path)
            changed |= _permissions(new) != _permissions(old)
        else:
            copy.room.take(0)
            copy.all(opened[0], opened[1], path)
            changed = True
        if changed:
            dress(opened[1], new, owners=copy.owners)
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


Find = Callable[[Sequence[str]], "os.stat_result | None"]
"""Tells what there is on a path, given as its names; None: nothing. Follows no link."""


def in_directory(rootfs: str) -> Find:
    """Return what tells what there is in a directory."""
    return lambda parts: _status(os.path.join(rootfs, *parts))


def names_in(destination: str) -> list[str]:
    """Return the names in the path of a mount point; none if it leads up."""
    parts = [part for part in destination.split("/") if part not in ("", ".")]
    return [] if ".." in parts else parts


def make_mount_points(
    mounts: Iterable[dict[str, Any]], find: Find, upper: str, *, owners: bool, whole: bool
) -> None:
    """Make those mount points that `find` does not find in the root file system.

    If the root directory itself is not mounted (`whole`), only what is mounted on its directories,
    which `upper` has, cannot be written to.
    """
    for mount in mounts:
        parts = names_in(mount["destination"])
        if whole or (len(parts) > 1 and os.path.isdir(os.path.join(upper, parts[0]))):
            _make_mount_point(mount, parts, find, upper, owners=owners)


def _make_mount_point(
    mount: dict[str, Any], parts: list[str], find: Find, upper: str, *, owners: bool
) -> None:
    """Make a mount point that is missing: the runtime cannot, where nothing can be written."""
    is_file = is_bind(mount) and not os.path.isdir(mount["source"])
    for number in range(1, len(parts) + 1):
        status = find(parts[:number])
        made = os.path.join(upper, *parts[:number])
        if status is not None and not stat.S_ISDIR(status.st_mode):
            return  # a file to mount on, or a link: the runtime follows it within the container
        if os.path.lexists(made):
            continue
        if status is None and is_file and number == len(parts):
            os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            continue
        os.mkdir(made)
        if status is not None:
            if owners:
                os.chown(made, status.st_uid, status.st_gid)
            os.chmod(made, stat.S_IMODE(status.st_mode))


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
