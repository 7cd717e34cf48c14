"""Connects the staging of one bundle with the store of images, and with who waits for it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import trio

from scrun.core.errors import ImageError, SettingsError
from scrun.core.paths import python_code
from scrun.core.progress import Say
from scrun.core.trees import remove_tree
from scrun.images.leases import lease_of
from scrun.images.store import Store, path_for, shrink
from scrun.oci.signals import its_end
from scrun.settings.file.load import Settings
from scrun.supervisor.children.processes import ChildEnv, child, own_program
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.staging.id_maps import remove_whoever_owns_it
from scrun.supervisor.staging.layers import NO_ROOM, Unusable

if TYPE_CHECKING:
    from scrun.images.leases import Lease
    from scrun.images.store import Entry, Fill
    from scrun.supervisor.log.journal import Journal

GIB = 1 << 30

PACK, UNPACK = "pack", "unpack"
"""The names of programs, in `supervisor.programs.pack_layer`."""


class Full(Unusable):
    """There is no room for a copy."""


class Copier(msgspec.Struct, frozen=True):
    """How images are made.

    Attributes:
        run: Runs PACK or UNPACK with these arguments; calls back with the bytes read so far.
            Raises Unusable; Full if there is no room.
        say: Shows in one line how far it is.
        wait: Called now and then while somebody else copies; raises when there is nobody any more
            to wait for it.
    """

    run: Callable[[str, Sequence[str], Callable[[int], None]], None]
    say: Say
    wait: Callable[[], None]


class ContainerImages(msgspec.Struct, frozen=True, dict=True):
    """The store of images, for one container.

    Attributes:
        path: Its directory; it may not exist yet.
        folder: The same, or the nearest directory above it that exists.
        store: The store, which is made if it is missing. Raises Unusable: it cannot be made.
        limit: The most bytes of the store; 0: any number.
        also: Further stores, which are only read.
    """

    path: str
    lease: Lease
    copier: Copier
    limit: int = 0
    also: Sequence[str] = ()
    discard: Callable[[str], None] = remove_tree

    @property
    def folder(self) -> str:
        folder = self.path
        while not os.path.isdir(folder) and folder != "/":
            folder = os.path.dirname(folder)
        return folder

    @cached_property
    def store(self) -> Store:
        try:
            return Store(self.path, self.discard)
        except ImageError as error:
            raise Unusable(f"cannot be copied: {error}") from error

    def keep(self, key: str) -> Entry | None:
        store = self.store
        if store.find(key) is None:  # whoever makes it has the lock
            return None
        try:
            return store.lease(key, self.lease)
        except OSError as error:
            raise Unusable(f"cannot be kept in {store.path}: {error.strerror}") from error

    def have(self, key: str, fill: Fill, waiting: Callable[[str], None], size: int) -> Entry:
        """Return an image, which is kept from now on; make it if it is not there.

        `fill` makes it; again if there was no room, and others could be removed. Its size may be
        0: unknown. Unusable if it cannot be made.
        """
        if entry := self.keep(key):
            return entry
        store = self.store
        try:
            _made(store, key, fill, waiting)
        except Full:
            if not shrink(store, self.limit, more=size or GIB):
                raise
            _made(store, key, fill, waiting)
        if entry := self.keep(key):
            return entry
        raise Unusable(f"were removed from {store.path} meanwhile")


def _made(store: Store, key: str, fill: Fill, waiting: Callable[[str], None]) -> None:
    try:
        store.make(key, fill, waiting)
    except (ImageError, OSError) as error:
        raise Unusable(f"cannot be copied: {error}") from error


_RUN = "from scrun.supervisor.programs.pack_layer import {0}; sys.exit({0}(sys.argv[1:]))"


def images_for(settings: Settings, request: JobRequest) -> ContainerImages | None:
    """Return the store of images for a container; None if it can have none. In a thread."""
    try:
        path = path_for(settings, request.child_env.environment)
    except SettingsError:
        return None
    root, container = os.path.split(request.record)

    def run(name: str, words: Sequence[str], tell: Callable[[int], None]) -> None:
        trio.from_thread.run(_copy, name, words, tell)

    copier = Copier(run, told_from_thread(request.journal), trio.from_thread.check_cancelled)
    lease, wanted = lease_of(root, container), settings.images
    return ContainerImages(
        path,
        lease,
        copier,
        wanted.size << 20,
        wanted.also,
        remove_whoever_owns_it,
    )


def told_from_thread(journal: Journal) -> Say:
    """Return what says in a thread how far something is."""
    progress = journal.progress()

    def say(text: str, share: float | None = None, /) -> None:
        trio.from_thread.run_sync(progress, text, share)

    return say


def copying(name: str) -> list[str]:
    """Return the command that runs PACK or UNPACK."""
    return python_code(_RUN.format(name))


async def _copy(name: str, words: Sequence[str], tell: Callable[[int], None]) -> None:
    """Copy a layer by a program; `tell` is called in a thread with the bytes copied so far."""
    errors: deque[str] = deque(maxlen=1)
    counts: deque[int] = deque(maxlen=1)
    more = trio.Event()

    def receive(line: str) -> None:
        nonlocal more
        counts.append(int(line))
        more.set()

    async def report() -> None:
        nonlocal more
        while True:
            await more.wait()
            more = trio.Event()
            # the store's file system may hang
            await in_thread(tell, counts[0], abandon=True)

    argv = [own_program("nice"), *copying(name), *words]
    async with unwrapped() as nursery:
        nursery.start_soon(report)
        async with (
            messages(errors.append) as stderr,
            messages(receive) as stdout,
            child(argv, ChildEnv(environment={}), stdout=stdout, stderr=stderr) as running,
        ):
            status = await running.wait()
        nursery.cancel_scope.cancel()
    if status:
        kind = Full if status == NO_ROOM else Unusable
        raise kind(errors[-1] if errors else f"cannot be copied: the copier {its_end(status)}")
