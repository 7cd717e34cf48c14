"""Runs the programs that get and unpack images: skopeo, unsquashfs, mksquashfs, zstd, cp.

They end when this process does, however that ends (`setpriv --pdeathsig`): the signal is sent when
the thread ends that has started them, so that is the main thread. One that neither reads nor
writes for ten minutes is ended: a registry, or a file system, does not answer.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from scrun.core.errors import ImageError
from scrun.oci.signals import its_end

PACKAGES = {
    "skopeo": ("gets images", "skopeo"),
    "zstd": ("unpacks layers", "zstd"),
    "unsquashfs": ("unpacks squashfs files", "squashfs-tools"),
    "mksquashfs": ("makes squashfs files", "squashfs-tools"),
    "cp": ("copies files", "coreutils"),
    "setpriv": ("ends programs with scrun", "util-linux"),
}
REMEDY = "raise [images] unpacked_size"
PATIENCE = 600.0
"""Seconds without progress after which a program is ended."""

_INTERVAL = 0.5
_LOOKS = 10  # at a program, within `PATIENCE`
_MOST = 65536
_READ = re.compile(rb"^rchar: ([0-9]+)$", re.MULTILINE)
_WRITTEN = re.compile(rb"^wchar: ([0-9]+)$", re.MULTILINE)
_MESSAGE = re.compile(r'msg="((?:[^"\\]|\\.)*)"')


def find(name: str) -> str:
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
    progress: Callable[[int], None] | None = None,
    most: int = 0,
) -> bytes:
    """Run a program to its end, or the end of this function; return its standard output.

    `what` says for the error what it does: "docker://busybox: cannot be copied". `fine` are
    statuses of success. `progress` is called with the bytes that it has read. `most` is the most
    bytes that it may write, a bit later; 0: any number.

    Raises:
        ImageError: It is missing, or fails, with its own reason; or it has written too much.
    """
    out = os.memfd_create("out")
    err = os.memfd_create("err")
    try:
        with subprocess.Popen(
            _ending_with_us(name, arguments),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        ) as process:
            try:
                status = _wait(process, progress, what, most)
            except BaseException:
                process.kill()
                raise
        if status in fine:
            return _content(out)
        reason = _reason(_content(err) or _content(out)) or f"it {its_end(status)}"
        raise ImageError(f"{what}: {reason}")
    finally:
        os.close(out)
        os.close(err)


@contextlib.contextmanager
def reading(name: str, *arguments: str, stdin: int, what: str) -> Iterator[IO[bytes]]:
    """Read what a program prints, or end it; ImageError at the end if it has failed."""
    err = os.memfd_create("err")
    try:
        words = _ending_with_us(name, arguments)
        with subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=err) as process:
            try:
                assert process.stdout
                yield process.stdout
                status = process.wait(PATIENCE)
            except BaseException:
                process.kill()
                raise
        if status:
            raise ImageError(f"{what}: {_reason(_content(err)) or f'it {its_end(status)}'}")
    finally:
        os.close(err)


def _ending_with_us(name: str, arguments: Sequence[str]) -> list[str]:
    return [find("setpriv"), "--pdeathsig", "KILL", "--", find(name), *arguments]


def _wait(
    process: "subprocess.Popen[bytes]",
    progress: Callable[[int], None] | None,
    what: str,
    most: int,
) -> int:
    interval = PATIENCE / _LOOKS if progress is None and not most else _INTERVAL
    seen, since = _moved(process.pid), time.monotonic()
    while True:
        try:
            return process.wait(interval)
        except subprocess.TimeoutExpired:
            pass
        moved = _moved(process.pid)
        if progress is not None:
            progress(_count(_READ, moved))
        if most and _count(_WRITTEN, moved) > most:
            raise ImageError(f"{what}: it unpacks to more than {most >> 20} MiB: {REMEDY}")
        if moved is None or moved != seen:
            seen, since = moved, time.monotonic()
        elif time.monotonic() - since >= PATIENCE:
            minutes = f"{PATIENCE / 60:.0f} minutes"
            raise ImageError(f"{what}: it made no progress for {minutes}; try again")


def _moved(pid: int) -> bytes | None:
    """Return what changes when a process reads or writes; None if it is not known."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return file.read()
    except OSError:
        return None


def _count(what: re.Pattern[bytes], moved: bytes | None) -> int:
    """Return how many bytes a process has read or written, by proc(5); 0 if it is not known."""
    found = what.search(moved or b"")
    return int(found[1]) if found else 0


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
