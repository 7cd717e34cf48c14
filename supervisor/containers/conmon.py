"""podman's conmon, which calls `create` and waits for the anchor.

Does what conmon would do if it saw the container's cgroup, and notices conmon's death.
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
_NAME = (b"-n", b"--name")
_GENERATIONS = 4  # the anchor, its maker, its create, perhaps a script around that


def calls(environment: Mapping[str, str]) -> bool:
    """Tell from the environment of `create` whether conmon called it."""
    return _SIGN_OF_CONMON in environment


def tell_out_of_memory(bundle: str, environment: Mapping[str, str], anchor: int) -> None:
    """Create the marker files from which podman sets `State.OOMKilled`.

    conmon watches the memory cgroup of the pid in the pid file, which is on another machine here,
    and creates an empty file `oom` in the bundle (measured: conmon 2.1.6), and in the directory of
    its option --persist-dir, if given (conmon 2.1.12). podman looks for one (4.3.1) or the other
    (5.4.2) when it reads the exit status, so they must exist before the anchor ends.

    Args:
        bundle: The bundle directory of `create`; if it is gone, nothing happens.
        environment: The environment of `create`: conmon sets _OCI_SYNCPIPE.
        anchor: The container's process for which conmon, its parent, waits.
    """
    if calls(environment):
        for directory in (bundle, *_persistent_directories(anchor)):
            with contextlib.suppress(OSError):
                os.close(os.open(os.path.join(directory, "oom"), _FLAGS, 0o644))


def _persistent_directories(anchor: int) -> Iterator[str]:
    """Yield the --persist-dir options of the anchor's parent."""
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
    """Call `lost` if the conmon that called `create` dies while the block runs.

    podman tracks and starts a container through its conmon: a container that loses its conmon
    before the start is never started, and podman 4.3 does not even delete it.

    Args:
        lost: Called at most once; never if another engine called `create`.
    """
    pidfd = _find_conmon(environment, anchor)
    if pidfd is None:
        yield
        return
    try:
        async with unwrapped() as nursery:

            @nursery.start_soon
            async def wait_for_death() -> None:
                await trio.lowlevel.wait_readable(pidfd)
                lost()

            yield
            nursery.cancel_scope.cancel()
    finally:
        os.close(pidfd)


def name_of_container(caller: int) -> str:
    """Return the name that the conmon above a `create` was given for its container; "" for none.

    Args:
        caller: The pid of `create`; 0 if that is not known.
    """
    words: list[bytes] = []
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{_above(caller)}/cmdline").read_bytes().split(b"\0")
    named = (value for key, value in itertools.pairwise(words) if key in _NAME)
    return next(named, b"").decode(errors="replace")


def _find_conmon(environment: Mapping[str, str], anchor: int) -> int | None:
    """Open a pidfd of the conmon above an anchor; None if no conmon called."""
    if not calls(environment):
        return None
    pid = _above(anchor)
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):  # gone, or in another namespace: 0
        return None
    if _is_conmon(pid):  # still: its number may have been used again
        return pidfd
    os.close(pidfd)
    return None


def _above(pid: int) -> int:
    """Return the pid of the conmon above a process; 0 if there is none."""
    for _ in range(_GENERATIONS):
        pid = _parent(pid)
        if _is_conmon(pid):
            return pid
    return 0


def _is_conmon(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes() == b"conmon\n"
    except OSError:
        return False


def _parent(pid: int) -> int:
    """Return the parent's pid; 0 if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
