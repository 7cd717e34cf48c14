"""Detaches the supervisor, and reports to the command that started it.

python-daemon has the settings that conmon and srun need.
"""

import contextlib
import os
import re
from collections.abc import Sequence

_CGROUP = "supervisor-"


def daemonize(kept: Sequence[int]) -> None:
    """Detach from the caller: session, process group, directory, descriptors but those `kept`.

    Returns in the grandchild only; the calling process exits. Call it before there are threads or
    an event loop.
    """
    import daemon

    context = daemon.DaemonContext(
        # By default it guesses from the parent and from standard input, and may not detach.
        detach_process=True,
        # The default sets a hard limit of 0, which srun propagates to the job.
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
    )
    try:
        context.open()
    except daemon.daemon.DaemonProcessDetachError as error:
        raise error.__cause__ or error from None  # what fork(2) has said


def leave_cgroup() -> str:
    """Leave the cgroup of the engine call that happened to start us, if permitted.

    Engines and service managers kill whole cgroups. Under systemd's delegation an ordinary user
    may move a process within user@UID.service; elsewhere this does nothing. Returns our new
    cgroup, for `remove_cgroup`; "" if we stay where we are.
    """
    try:
        with open("/proc/self/cgroup", encoding="ascii") as file:
            parent = delegated(file.read())
    except OSError:
        return ""
    return move_into_slice(f"/sys/fs/cgroup{parent}/scrun.slice") if parent else ""


def delegated(cgroups: str) -> str:
    """Return the cgroup above ours that is our user's (`/proc/self/cgroup`), or "".

    It is not looked up by our uid: in the user namespace of rootless podman that is 0.
    """
    found = re.search(r"^0::(.*?/user@[0-9]+\.service)(?:/|$)", cgroups, re.MULTILINE)
    return found[1] if found else ""


def move_into_slice(parent: str) -> str:
    """Move to a cgroup of our own below another one; remove those of dead supervisors there.

    Returns ours; "" if that is not permitted: the service has no delegation.
    """
    cgroup = f"{parent}/{_CGROUP}{os.getpid()}"
    try:
        os.makedirs(cgroup, exist_ok=True)
        _enter(cgroup)
        names = os.listdir(parent)
    except OSError:
        return ""
    for name in names:
        if name.startswith(_CGROUP):
            with contextlib.suppress(OSError):  # it is in use
                os.rmdir(f"{parent}/{name}")
    return cgroup


def remove_cgroup(cgroup: str) -> None:
    """Remove our cgroup before we exit, from within the slice above it."""
    with contextlib.suppress(OSError):  # used by children that outlive us: the next one removes it
        _enter(os.path.dirname(cgroup))
        os.rmdir(cgroup)


def _enter(cgroup: str) -> None:
    with open(f"{cgroup}/cgroup.procs", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))


class Starter:
    """Two descriptors of the starting command; each is used once and closed.

    Their numbers may be reused after that, so nothing must be written to them any more.
    """

    def __init__(self, ready: int | None = None, lock: int | None = None) -> None:
        """Own `ready`, where to report that, None if nobody waits, and the lock of our name."""
        self._ready = ready
        self._lock = lock

    @property
    def fds(self) -> list[int]:
        return [fd for fd in (self._ready, self._lock) if fd is not None]

    @property
    def waits(self) -> bool:
        """Whether the starter still waits for a report."""
        return self._ready is not None

    def tell(self, text: str) -> None:
        """Report that the supervisor is ready, or why it failed, and release the lock.

        Only the first call reports anything.
        """
        ready, lock, self._ready, self._lock = self._ready, self._lock, None, None
        if lock is not None:
            os.close(lock)
        if ready is not None:
            with contextlib.suppress(OSError):  # our starter was killed meanwhile
                os.write(ready, text.encode(errors="replace"))
            os.close(ready)
