"""A file system that stops answering for a while."""

import subprocess
from pathlib import Path


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
        subprocess.run(["fsfreeze", "-f", self.place], check=True, timeout=30)
        self.is_frozen = True

    def thaw(self) -> None:
        if self.is_frozen:
            subprocess.run(["fsfreeze", "-u", self.place], check=True, timeout=30)
            self.is_frozen = False

    def close(self) -> None:
        self.thaw()
        subprocess.run(["umount", "-l", self.place], check=True, timeout=30)
