"""podman's conmon, which calls `create` and waits for the anchor.

What it would do if it saw the container's cgroup, and what follows from its death.
"""

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from scrun.supervisor.core.nurseries import unwrapped

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SIGN_OF_CONMON = "_OCI_SYNCPIPE"
_OPTION = b"--persist-dir"
_GENERATIONS = 4  # the anchor, who makes it, its create, perhaps a script around that


def calls(environment: Mapping[str, str]) -> bool:
    """Tell whether conmon calls, by the environment of `create`."""
    return _SIGN_OF_CONMON in environment


def tell_out_of_memory(bundle: str, environment: Mapping[str, str], anchor: int) -> None:
    """Leave the mark from which podman has `State.OOMKilled`.

    conmon watches the memory cgroup of the pid in the pid file, which is on another machine here,
    and makes an empty file `oom` in the bundle (measured: conmon 2.1.6), and in the directory of
    its option --persist-dir, if it has that (conmon 2.1.12). podman looks for the one (4.3.1) or
    the other (5.4.2) when it reads the exit status, so they have to be there before the anchor
    ends.

    Args:
        bundle: The directory that `create` was given; if it is gone, nothing happens.
        environment: Of `create`: conmon sets _OCI_SYNCPIPE.
        anchor: The process of the container that conmon, its parent, waits for.
    """
    if calls(environment):
        for directory in (bundle, *_persistent_directories(anchor)):
            with contextlib.suppress(OSError):
                os.close(os.open(os.path.join(directory, "oom"), _FLAGS, 0o644))


def _persistent_directories(anchor: int) -> Iterator[str]:
    """Find where the parent of the anchor was told to keep things."""
    try:
        words = Path(f"/proc/{_parent(anchor)}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return
    for option, value in itertools.pairwise(words):
        if option == _OPTION and value.startswith(b"/"):
            yield os.fsdecode(value)


@asynccontextmanager
async def watch_conmon(
    environment: Mapping[str, str], anchor: int, lost: Callable[[], None]
) -> AsyncIterator[None]:
    """Call `lost` if the conmon that has a container created dies in the block.

    podman knows of a container by its conmon, and starts it through that one: who has no conmon
    any more before that is never started, and podman 4.3 does not even delete it.

    Args:
        environment: Of `create`.
        anchor: The container's, while its `create` is there still.
        lost: Called at most once. Never, if another engine calls.
    """
    pidfd = _find_conmon(environment, anchor)
    if pidfd is None:
        yield
        return
    try:
        async with unwrapped() as nursery:

            @nursery.start_soon
            async def mind() -> None:
                await trio.lowlevel.wait_readable(pidfd)
                lost()

            yield
            nursery.cancel_scope.cancel()
    finally:
        os.close(pidfd)


def _find_conmon(environment: Mapping[str, str], anchor: int) -> int | None:
    """Open the conmon above an anchor; None if there is none."""
    if not calls(environment):
        return None
    pid = anchor
    for _ in range(_GENERATIONS):
        pid = _parent(pid)
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, ValueError):  # gone, or one of another namespace: 0
            return None
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_bytes() == b"conmon\n":
                return pidfd
        os.close(pidfd)
    return None


def _parent(pid: int) -> int:
    """Return the parent's pid; 0 if that is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
