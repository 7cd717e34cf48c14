"""Unpacks a squashfs file into a directory.

Usage: unpack_image.py FILE DIRECTORY, where the directory is missing or empty. Needs
unsquashfs(1); see `scrun.images.squashfs`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from scrun.images.squashfs import FINE_FOR_USERS, unpacking
from scrun.supervisor.programs.pack_layer import FULL, end_with_parent
from scrun.supervisor.staging.layers import NO_ROOM


def main(argv: Sequence[str]) -> int:
    """Unpack and return 0; or print why not and return 1, or 3 if there is no room."""
    file, directory = argv
    command = unpacking(file, directory)
    if shutil.which(command[0]) is None:
        sys.stderr.write(f"cannot be unpacked: {command[0]} is not installed here\n")
        return 1
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=end_with_parent,
        check=False,
    )
    said = done.stderr.decode(errors="replace")
    if any(word in said for word in FULL):  # which unsquashfs may not count as a failure
        sys.stderr.write(f"cannot be unpacked: {file}: no room\n")
        return NO_ROOM
    if not done.returncode or (os.geteuid() and done.returncode in FINE_FOR_USERS):
        return 0
    why = next(iter(said.strip().splitlines()), f"status {done.returncode}")
    sys.stderr.write(f"cannot be unpacked: {file}: {why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
