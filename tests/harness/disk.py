"""File systems that stop answering for a while, or lie in memory."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def freeze(place: Path) -> None:
    """Have a file system answer nobody who writes."""
    subprocess.run(["fsfreeze", "-f", place], check=True, timeout=30)


def thaw(place: Path) -> None:
    """Have it answer again."""
    subprocess.run(["fsfreeze", "-u", place], check=True, timeout=30)


class Disk:
    """A file system of its own, which can be frozen (ioctl_fsfreeze): who writes there waits."""

    def __init__(self, directory: Path) -> None:
        self.place = directory / "disk"
        self.place.mkdir()
        image = directory / "image"
        with image.open("wb") as file:
            file.truncate(8 << 20)
        subprocess.run(["mkfs.ext4", "-q", image], check=True, timeout=30)
        subprocess.run(["mount", "-o", "loop", image, self.place], check=True, timeout=30)
        self.is_frozen = False

    def freeze(self) -> None:
        freeze(self.place)
        self.is_frozen = True

    def thaw(self) -> None:
        if self.is_frozen:
            thaw(self.place)
            self.is_frozen = False

    def close(self) -> None:
        self.thaw()
        subprocess.run(["umount", "-l", self.place], check=True, timeout=30)


@contextmanager
def mounted(path: str, uid: int, gid: int, size: str) -> Iterator[None]:
    """Have a file system of a user's own, in memory, whoever still uses it at the end.

    `size` are the options of tmpfs for it.
    """
    os.mkdir(path, 0o700)
    options = f"{size},mode=0700,uid={uid},gid={gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "scrun-test", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
        os.rmdir(path)
