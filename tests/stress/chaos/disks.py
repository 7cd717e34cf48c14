"""Small file systems that can be filled, or stop answering: a root, or the scratch directory."""

import contextlib
import errno
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from tests.harness import disk
from tests.stress.chaos import images
from tests.stress.chaos.census import left_in

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container

_SIZE = "size=384k,nr_inodes=200"
_OF_A_STORE = "size=32m,nr_inodes=8000"
_FILLER = "@filler"
_GOES = 10.0


@contextmanager
def freezable(path: str, uid: int, gid: int) -> Iterator[None]:
    """Have one that `freeze` can stop."""
    above = Path(path).parent
    above.mkdir(0o755)
    try:
        with contextlib.closing(disk.Disk(above)) as made:
            (made.place / "lost+found").rmdir()
            os.chown(made.place, uid, gid)
            made.place.chmod(0o700)
            yield
    finally:
        shutil.rmtree(above)


@asynccontextmanager
async def disk_of(container: "Container") -> AsyncIterator[None]:
    """Have a small file system for a container, if it needs one; nothing may be left on it."""
    path = container.testbed.disk(container.plan)
    if path is None:
        yield
        return
    user = container.testbed.site.user
    store = container.plan.fault.disk == "store"
    look = images.left_of if store else _left
    if container.plan.fault.action == "freeze":
        made = freezable(path, user.uid, user.gid)
    else:
        made = disk.mounted(path, user.uid, user.gid, _OF_A_STORE if store else _SIZE)
    with made:
        yield
        with trio.move_on_after(_GOES):
            while look(path):
                await trio.sleep(0.05)
        container.seen.left += look(path)


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


async def freeze(container: "Container") -> None:
    """Have the container's file system answer nobody who writes, for a while."""
    directory = container.testbed.disk(container.plan)
    assert directory is not None
    await trio.to_thread.run_sync(disk.freeze, Path(directory))
    try:
        container.hit("its file system is frozen")
        await trio.sleep(container.plan.pause)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(disk.thaw, Path(directory))
        container.note("it answers again")


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
