"""Which process this is, for those who look for us when we are dead."""

import contextlib
import functools
import os
import socket
from _blake2 import blake2s  # hashlib loads OpenSSL, 2 ms

from scrun.model.record import ProcessIdentity


@functools.cache
def myself() -> ProcessIdentity:
    """Return this process."""
    return ProcessIdentity(
        pid=os.getpid(),
        started=_started("self") or 0,
        pid_namespace=_namespace(),
        boot=boot(),
        host=socket.gethostname(),
    )


def is_dead(process: ProcessIdentity) -> bool:
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


_MARK = "scrun"
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-")


def place(root: str) -> str:
    """Name a root directory of this machine, for places that other machines share: `HOST-DIGEST`.

    The digest is of the machine and the directory, which is one user's. So two hosts that share a
    scratch directory, or two root directories with the same one, never take each other's for
    theirs, and the same one is known again after a restart.
    """
    return f"{_host()}-{_digest(os.path.realpath(root))}"


def mark(root: str) -> str:
    """Return what says of a thing in a place that others share that it is ours."""
    us = myself()
    return f"{_MARK}:{place(root)}:{us.boot}:{us.pid_namespace}:{us.pid}:{us.started}"


def read_mark(text: str, root: str) -> ProcessIdentity | None:
    """Return whose a mark is, if that was a supervisor of this machine and root directory."""
    name, _, rest = text.strip().partition(":")
    where, _, rest = rest.partition(":")
    boot_id, *numbers = rest.split(":")
    if name != _MARK or where != place(root) or not all(number.isdigit() for number in numbers):
        return None
    if len(numbers) != 3:
        return None
    pid_namespace, pid, started = map(int, numbers)
    return ProcessIdentity(pid, started, pid_namespace, boot_id, socket.gethostname())


@functools.cache
def _host() -> str:
    """Return the machine's name as it may stand in a file's name, and not too long."""
    return "".join(c if c in _SAFE else "-" for c in socket.gethostname())[:64]


@functools.cache
def _digest(root: str) -> str:
    machine = b""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            machine = file.read(64).strip()
            break
    return blake2s(machine + b"\0" + os.fsencode(root), digest_size=6).hexdigest()
