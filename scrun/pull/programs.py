"""Runs the programs that get and unpack images: skopeo, umoci, unsquashfs, mksquashfs, cp."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence

from scrun.core.errors import ImageError

PACKAGES = {
    "skopeo": ("gets images", "skopeo"),
    "umoci": ("unpacks images", "umoci"),
    "unsquashfs": ("unpacks squashfs files", "squashfs-tools"),
    "mksquashfs": ("makes squashfs files", "squashfs-tools"),
    "cp": ("copies files", "coreutils"),
}

_INTERVAL = 0.5
_MOST = 65536
_MESSAGE = re.compile(r'msg="((?:[^"\\]|\\.)*)"')


def find(name: str) -> str:
    """Return the path of a program.

    Raises:
        ImageError: It is not installed.
    """
    found = shutil.which(name)
    if found is None:
        what, package = PACKAGES[name]
        raise ImageError(f"{name}, which {what}, is not installed: apt install {package}")
    return found


def run(
    name: str,
    *arguments: str,
    what: str,
    directory: str = "/",
    fine: Sequence[int] = (0,),
    progress: Callable[[], None] | None = None,
    shown: bool = False,
) -> bytes:
    """Run a program to its end; it ends if this function is left.

    Args:
        name: The program.
        arguments: Its arguments.
        what: What it does, for the error: "docker://busybox: cannot be copied".
        directory: Its working directory.
        fine: Statuses that are no error.
        progress: Called now and then.
        shown: Whether its standard output is shown on standard error.

    Returns:
        Its standard output, unless that is shown.

    Raises:
        ImageError: It is missing, or fails; with its own reason.
    """
    out = os.memfd_create("out")
    err = os.memfd_create("err")
    try:
        with subprocess.Popen(
            [find(name), *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=2 if shown else out,
            stderr=err,
        ) as process:
            try:
                status = _wait(process, progress)
            except BaseException:
                process.kill()
                raise
        if status in fine:
            return b"" if shown else _content(out)
        reason = _reason(_content(err) or _content(out)) or f"exit status {status}"
        raise ImageError(f"{what}: {reason}")
    finally:
        os.close(out)
        os.close(err)


def _wait(process: "subprocess.Popen[bytes]", progress: Callable[[], None] | None) -> int:
    while True:
        try:
            return process.wait(None if progress is None else _INTERVAL)
        except subprocess.TimeoutExpired:
            if progress is not None:
                progress()


def _content(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0)


def _reason(said: bytes) -> str:
    """Return the last line that a program has printed, as plain words."""
    lines = [line.strip(" \u2a2f") for line in said[-_MOST:].decode(errors="replace").splitlines()]
    last = next(filter(None, reversed(lines)), "")
    if found := _MESSAGE.search(last):  # of skopeo
        last = found[1].replace('\\"', '"')
    return last
