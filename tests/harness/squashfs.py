"""Images as files of squashfs, and nodes where users may mount them."""

import os
import subprocess
from pathlib import Path


def fuse_for_all() -> None:
    """Have a /dev/fuse that users may open, as udev makes it; not every machine has udev."""
    os.chmod("/dev/fuse", 0o666)


def squashed(folder: Path, image: Path, owner: int = 0) -> None:
    """Make an image of a directory."""
    words: list[str | Path] = ["mksquashfs", folder, image, "-noappend", "-quiet", "-no-progress"]
    words += ["-force-uid", str(owner), "-force-gid", str(owner)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def served() -> list[int]:
    """Return the processes that serve images."""
    done = subprocess.run(["pgrep", "squashfuse"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]
