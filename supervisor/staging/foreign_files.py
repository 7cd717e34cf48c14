"""Copies the files of an image that one user of a node could not use.

The copies belong to that user, and the node mounts them above the image's layers. The kernel
cannot look into a directory that is for its owner alone, so of such a one everything is copied.
Everything here blocks: call it in a worker thread.
"""

import contextlib
import os
import stat
from typing import Self

from scrun.supervisor.staging.copies import OPEN, Room, copy_all, copy_entry, dress, is_foreign
from scrun.supervisor.staging.foreign import Foreign
from scrun.supervisor.staging.overlay_options import opaque


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
        The names of the root directory's directories that were copied as a whole.

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
        # a layer above may have removed it, or put a link in the place of its directory
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
            made: Receives the path and the status of each that was made.
            before: The path of this one.
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
