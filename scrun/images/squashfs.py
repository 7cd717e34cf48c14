"""Root file systems that are a user's own squashfs files, and the programs for those.

The nodes mount such a file itself. The store has a link to it and, so that a container can be laid
out without unpacking, a directory with only what is in its root directory. A file may be hostile;
unsquashfs(1) writes nothing outside of its target.
"""

import os
import subprocess
from collections.abc import Sequence

from scrun.core.errors import ImageError, why
from scrun.images.store import ROOTFS, SQUASHFS, digest_of_words

FINE_FOR_USERS = (0, 2)
"""Exit statuses of unsquashfs for an ordinary user; 2: a device, say, needs root."""

NO_SEARCH = "-no-duplicates"
"""An option of mksquashfs, for which 4.5 else compares each file with all others of the same size:
60,000 of them take 43 s instead of 3, and 500,000 take hours."""

_LEVEL = "3"  # half of the time of the default for five percent more


def key_of(path: str, *, unpacked: bool = False) -> str:
    """Return the key of a file, another one when it changes, or its files are `unpacked`."""
    return f"file-{digest_of_words(*identity(path))}" + "-files" * unpacked


def identity(path: str) -> tuple[object, ...]:
    """Return what changes when a file changes."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {why(error)}") from error
    return os.path.realpath(path), status.st_ino, status.st_size, status.st_mtime_ns


def linked_in(directory: str) -> str:
    """Return the user's file to which an image of a store leads; "" if it leads to none."""
    try:
        return os.readlink(os.path.join(directory, SQUASHFS))
    except OSError:
        return ""


def file_of(rootfs: str) -> str:
    """Return the user's file that has a root file system; "" if no file has it."""
    directory, name = os.path.split(rootfs)
    return linked_in(directory) if name == ROOTFS else ""


def unpacking(file: str, target: str) -> tuple[str, ...]:
    """Return the command that unpacks a file; for a user all is theirs, without devices."""
    return (*_extracting(target), file)


def root_directory(file: str, target: str) -> tuple[str, ...]:
    """Return the command that makes what is in the root directory; directories are empty."""
    return (*_extracting(target), "-max-depth", "1", file)


def entries(file: str, target: str, depth: int, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the command that makes some entries in a directory, as far as they are there.

    The relative `paths`, no patterns, have `depth` names: directories of that depth are empty.
    """
    return (*_extracting(target), "-max-depth", str(depth), "-no-wildcards", file, *paths)


def _extracting(target: str) -> tuple[str, ...]:
    ordinary = ("-user-xattrs",) if os.geteuid() else ()
    return ("unsquashfs", "-no-progress", "-force", *ordinary, "-dest", target)


def best_compression(tool: str) -> list[str]:
    """Return the options of mksquashfs for zstd, if it has that."""
    done = subprocess.run(
        [tool, "-help"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    zstd = ["-comp", "zstd", "-Xcompression-level", _LEVEL]
    return zstd if b"zstd" in done.stdout else []
