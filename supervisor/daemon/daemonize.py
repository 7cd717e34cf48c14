"""Become nobody's container: python-daemon, with the settings that conmon and srun need."""

import contextlib
import os
from collections.abc import Sequence

_CGROUP = "supervisor-"


def daemonize(kept: Sequence[int]) -> None:
    """Detach from whoever called: session, process group, directory, descriptors.

    Returns in the grandchild only; the process that called is gone then. Call it before
    anything has threads or an event loop.

    Args:
        kept: Descriptors that stay open.
    """
    import daemon

    daemon.DaemonContext(
        # It would guess from the parent and from standard input, and not detach in silence.
        detach_process=True,
        # The default is a hard limit of 0, which srun hands on to the job.
        prevent_core=False,
        # The default ignores TTIN, TTOU and TSTP, which children inherit, and raises SystemExit
        # from SIGTERM in the middle of the event loop.
        signal_map={},
        umask=0o077,
        working_directory="/",
        files_preserve=list(kept),
        # /dev/null, all three
        stdin=None,
        stdout=None,
        stderr=None,
    ).open()


def leave_cgroup() -> str:
    """Leave the control group of the engine call that happened to start us, where we may.

    Engines and service managers end those as a whole. Under systemd's delegation an ordinary
    user may move a process within user@UID.service; nothing is done where that is not so.

    Returns:
        The control group that we are in now, for `remove_cgroup`; "" if it is the same.
    """
    try:
        with open("/proc/self/cgroup", encoding="ascii") as file:
            unified = next(line[3:].strip() for line in file if line.startswith("0::"))
    except (OSError, StopIteration):
        return ""
    service = f"user@{os.getuid()}.service"
    head, found, _ = unified.partition(service)
    if not found:
        return ""
    return move_into_slice(f"/sys/fs/cgroup{head}{service}/scrun.slice")


def move_into_slice(parent: str) -> str:
    """Move to a control group of our own below another one, and remove those of the dead there.

    Returns:
        Ours; "" where we may not: it is a service without delegation.
    """
    place = f"{parent}/{_CGROUP}{os.getpid()}"
    try:
        os.makedirs(place, exist_ok=True)
        _enter(place)
        names = os.listdir(parent)
    except OSError:
        return ""
    for name in names:
        if name.startswith(_CGROUP):
            with contextlib.suppress(OSError):  # somebody is in it
                os.rmdir(f"{parent}/{name}")
    return place


def remove_cgroup(place: str) -> None:
    """Remove our control group when we go: the slice above it takes us for our last moment."""
    with contextlib.suppress(OSError):  # children that outlast us are in it: the next one does it
        _enter(os.path.dirname(place))
        os.rmdir(place)


def _enter(place: str) -> None:
    with open(f"{place}/cgroup.procs", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
