"""What podman's conmon would do if it saw the container's cgroup."""

import contextlib
import os
from collections.abc import Mapping

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SIGN_OF_CONMON = "_OCI_SYNCPIPE"


def tell_out_of_memory(bundle: str, environment: Mapping[str, str]) -> None:
    """Leave the mark from which podman has `State.OOMKilled`.

    conmon watches the memory cgroup of the pid in the pid file, which is on another machine here,
    and makes an empty file `oom` in the bundle; podman looks for it when it reads the exit status
    (conmon 2.1.6, podman 4.3.1). So it has to be there before the anchor ends.

    Args:
        bundle: The directory that `create` was given; if it is gone, nothing happens.
        environment: Of `create`: conmon sets _OCI_SYNCPIPE.
    """
    if _SIGN_OF_CONMON in environment:
        with contextlib.suppress(OSError):
            os.close(os.open(os.path.join(bundle, "oom"), _FLAGS, 0o644))
