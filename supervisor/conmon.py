"""What podman's conmon would do if it saw the container's cgroup."""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SIGN_OF_CONMON = "_OCI_SYNCPIPE"
_OPTION = b"--persist-dir"


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
    if _SIGN_OF_CONMON in environment:
        for directory in (bundle, *_persistent_directories(anchor)):
            with contextlib.suppress(OSError):
                os.close(os.open(os.path.join(directory, "oom"), _FLAGS, 0o644))


def _persistent_directories(anchor: int) -> Iterator[str]:
    """Find where the parent of the anchor was told to keep things."""
    try:
        stat = Path(f"/proc/{anchor}/stat").read_bytes()
        conmon = int(stat.rpartition(b")")[2].split()[1])
        words = Path(f"/proc/{conmon}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, IndexError):
        return
    for option, value in itertools.pairwise(words):
        if option == _OPTION and value.startswith(b"/"):
            yield os.fsdecode(value)
