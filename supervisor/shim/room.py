"""Room for images on the node's own disk; see `cache`."""

import fcntl
import os

from .files import folders, is_private, own_only
from .locks import is_at, lock
from .words import CallRefused

PART = ".part"
"""How the name of one ends that is not complete."""

_LOW = 0.8
_MIB = 1 << 20


def folder_of_images() -> str:
    """Return the directory of images on this node; make it if it is missing.

    Raises:
        OSError: It cannot be made.
        CallRefused: Somebody else has made it.
    """
    errors = []
    for folder in folders(os.environ):
        try:
            path = os.path.join(own_only(folder), f"scrun-images-{os.geteuid()}")
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            errors.append(str(error))
            continue
        if is_private(path):
            return path
        errors.append(f"{path} is not the user's own")
    raise CallRefused(f"no directory for images on the node: {errors[0]}")


def make_room(part: str, size: int, limit: int) -> None:
    """Remove what is used by nobody, what was not for the longest time first, until there is room.

    Args:
        part: The file that is to come.
        size: Its bytes.
        limit: The most bytes of all images; 0: any number.

    Raises:
        CallRefused: There is none.
    """
    folder = os.path.dirname(part)
    found, total = [], 0
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.endswith(PART):
            if path != part:
                _remove_if_free(path)  # its shim was killed
            continue
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        found.append((status.st_mtime, status.st_size, path))
        total += status.st_size
    excess = total + size - int(limit * _LOW) if limit and total + size > limit else 0
    for _, bytes_of, path in sorted(found):
        if excess <= 0 and size <= _free(folder):
            break
        if _remove_if_free(path):
            excess -= bytes_of
            total -= bytes_of
    if limit and total + size > limit:
        had = f"; others, which are used, have {total // _MIB}" if total else ""
        most = f"images may have {limit // _MIB} there ([images] node_size){had}"
        raise CallRefused(f"no room for {size // _MIB} MiB on the node: {most}")
    if size > _free(folder):
        raise CallRefused(f"no room for {size // _MIB} MiB in {folder} on the node")


def _free(folder: str) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _remove_if_free(path: str) -> bool:
    """Remove a file that nobody has locked; return whether it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        if not lock(fd, fcntl.LOCK_EX):
            return False
        if is_at(fd, path):
            os.unlink(path)
        return True
    finally:
        os.close(fd)
