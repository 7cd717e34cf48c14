"""Which process this is, for those who look for us when we are dead."""

import functools
import os
import socket

from scrun.record import Process


@functools.cache
def myself() -> Process:
    """Return this process."""
    return Process(
        pid=os.getpid(),
        started=_started("self") or 0,
        pid_namespace=_namespace(),
        boot=boot(),
        host=socket.gethostname(),
    )


def is_dead(process: Process) -> bool:
    """Tell whether a process is known to be dead; one that cannot be seen from here is not."""
    if process.host != socket.gethostname() or not process.boot:
        return False
    if process.boot != boot():
        return True
    if not process.started or process.pid_namespace != _namespace():
        return False
    return _started(str(process.pid)) != process.started


@functools.cache
def boot() -> str:
    """Return what tells this start of the machine from all others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


@functools.cache
def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _started(pid: str) -> int | None:
    """Return when a process began; None when there is none, or nothing but its status."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
