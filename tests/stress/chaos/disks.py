"""Small file systems that can be filled: for a root directory, or for the scratch directory."""

import contextlib
import errno
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from tests.stress.chaos import images
from tests.stress.chaos.census import left_in

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container

_SIZE = "size=384k,nr_inodes=200"
_OF_A_STORE = "size=32m,nr_inodes=8000"
_FILLER = "@filler"
_GOES = 10.0


def mount(path: str, uid: int, gid: int, size: str = _SIZE) -> None:
    """Mount a small file system of a user's own."""
    os.mkdir(path, 0o700)
    options = f"{size},mode=0700,uid={uid},gid={gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", path], check=True)


def unmount(path: str) -> None:
    """Undo it, whoever still uses it."""
    subprocess.run(["umount", "--lazy", path], check=True)
    os.rmdir(path)


@asynccontextmanager
async def disk_of(container: "Container") -> AsyncIterator[None]:
    """Have a small file system for a container, if it needs one; nothing may be left on it."""
    path = container.testbed.disk(container.plan)
    if path is None:
        yield
        return
    user = container.testbed.site.user
    store = container.plan.fault.disk == "store"
    mount(path, user.uid, user.gid, _OF_A_STORE if store else _SIZE)
    look = images.left_of if store else _left
    try:
        yield
        with trio.move_on_after(_GOES):
            while look(path):
                await trio.sleep(0.05)
        container.seen.left += look(path)
    finally:
        unmount(path)


def _left(path: str) -> list[str]:
    return [f"{name} on its file system" for name in left_in(path)]


async def fill(container: "Container") -> None:
    """Fill the container's small file system, by bytes or by names; empty it after a while."""
    directory = container.testbed.disk(container.plan)
    assert directory is not None
    filler = f"{directory}/{_FILLER}"
    try:
        if container.plan.number % 2:
            _fill_with_bytes(filler)
            container.hit("no space is left")
        else:
            _fill_with_names(filler)
            container.hit("no inode is left")
        await trio.sleep(container.plan.pause)
    finally:
        for name in os.listdir(directory):
            if name.startswith(_FILLER):
                os.unlink(f"{directory}/{name}")
        container.note("there is space again")


def _fill_with_bytes(path: str) -> None:
    with open(path, "wb", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass


def _fill_with_names(path: str) -> None:
    for number in range(10_000):
        try:
            os.close(os.open(f"{path}{number}", os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return
