"""Become nobody's container: python-daemon, with the settings that conmon and srun need."""

import os
from collections.abc import Sequence


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


def leave_cgroup() -> None:
    """Leave the control group of the engine call that happened to start us, where we may.

    Engines and service managers end those as a whole. Under systemd's delegation an ordinary
    user may move a process within user@UID.service; nothing is done where that is not so.
    """
    try:
        with open("/proc/self/cgroup", encoding="ascii") as file:
            unified = next(line[3:].strip() for line in file if line.startswith("0::"))
    except (OSError, StopIteration):
        return
    service = f"user@{os.getuid()}.service"
    head, found, _ = unified.partition(service)
    if not found:
        return
    place = f"/sys/fs/cgroup{head}{service}/scrun.slice/supervisor-{os.getpid()}"
    try:
        os.makedirs(place, exist_ok=True)
        with open(f"{place}/cgroup.procs", "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
    except OSError:
        pass  # it is a service without delegation: then we may not
