"""Connects the staging of one bundle with the store of images, and with who waits for it."""

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence

import trio

from scrun.core.errors import SettingsError
from scrun.core.paths import packages
from scrun.images.leases import lease_of
from scrun.images.place import path_for
from scrun.settings.file.load import Settings
from scrun.supervisor.children.processes import ChildEnv, child, own_program
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.places import program
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.staging.id_maps import remove_whoever_owns_it
from scrun.supervisor.staging.image_access import ContainerImages, Copier, Full
from scrun.supervisor.staging.overlay_options import Unusable
from scrun.supervisor.staging.stored import COPY, NO_ROOM

_RUN = """\
import sys; sys.path.insert(0, sys.argv.pop(1))
from scrun.supervisor.programs.{0} import main; sys.exit(main(sys.argv[1:]))"""


def images_for(settings: Settings, request: JobRequest) -> ContainerImages | None:
    """Return the store of images for a container; None if it can have none. In a thread."""
    try:
        path = path_for(settings, request.child_env.environment)
    except SettingsError:
        return None
    root, container = os.path.split(request.record)

    def run(name: str, words: Sequence[str], tell: Callable[[int], None]) -> None:
        trio.from_thread.run(_copy, name, words, tell)

    def say(text: str) -> None:
        trio.from_thread.run_sync(request.journal.live, text)

    copier = Copier(run, say, trio.from_thread.check_cancelled)
    lease, wanted = lease_of(root, container), settings.images
    return ContainerImages(
        path,
        lease,
        copier,
        wanted.size << 20,
        wanted.also,
        wanted.format,
        remove_whoever_owns_it,
    )


def copying(name: str) -> list[str]:
    """Return the command that runs COPY, PACK or UNPACK."""
    if name == COPY:
        return [sys.executable, "-I", "-S", program("programs", name)]
    return [sys.executable, "-I", "-c", _RUN.format(name), packages()]


async def _copy(name: str, words: Sequence[str], tell: Callable[[int], None]) -> None:
    """Copy a layer.

    Args:
        name: The program (`supervisor/programs`).
        tell: Called in a thread with the bytes copied so far.

    Raises:
        Unusable: It cannot be copied.
    """
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
        raise kind(errors[-1] if errors else f"cannot be copied: status {status}")
