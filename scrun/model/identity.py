"""Identifies this process, so that others can tell later whether it is dead."""

import contextlib
import functools
import os
import socket
from _blake2 import blake2s  # hashlib loads OpenSSL, 2 ms

from scrun.core.place import stat_fields
from scrun.model.record import ProcessIdentity


@functools.cache
def myself() -> ProcessIdentity:
    return identity_of(os.getpid())


def identity_of(pid: int) -> ProcessIdentity:
    """Return the identity of a process of this PID namespace."""
    return ProcessIdentity(
        pid=pid,
        started=_started(pid) or 0,
        pid_namespace=_namespace(),
        boot=boot(),
        host=socket.gethostname(),
    )


def is_dead(process: ProcessIdentity) -> bool:
    """Return whether a process is known to be dead; if it cannot be checked from here, False."""
    if process.host != socket.gethostname() or not process.boot:
        return False
    if process.boot != boot():
        return True
    if not process.started or process.pid_namespace != _namespace():
        return False
    return _started(process.pid) != process.started


@functools.cache
def boot() -> str:
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


def _started(pid: int) -> int | None:
    """Return when a process started; None if it does not exist or is a zombie."""
    fields = stat_fields(pid)
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


_MARK = "scrun"
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-")


def root_name(root: str) -> str:
    """Return a unique name of a root directory, for shared directories: `HOST-DIGEST`.

    The digest is of the machine and the directory, which is one user's. So hosts or root
    directories that share a scratch directory never mistake each other's files for their own, and
    the name stays the same after a reboot.
    """
    return f"{_host()}-{_digest(os.path.realpath(root))}"


def mark(root: str) -> str:
    """Return a text that identifies something in a shared place as this supervisor's."""
    us = myself()
    return f"{_MARK}:{root_name(root)}:{us.boot}:{us.pid_namespace}:{us.pid}:{us.started}"


def read_mark(text: str, root: str) -> ProcessIdentity | None:
    """Return whose mark begins a text, if a supervisor's of this machine and root; else None."""
    name, _, rest = "".join(text.split(maxsplit=1)[:1]).partition(":")
    where, _, rest = rest.partition(":")
    boot_id, *numbers = rest.split(":")
    if name != _MARK or where != root_name(root):
        return None
    if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
        return None
    pid_namespace, pid, started = map(int, numbers)
    return ProcessIdentity(pid, started, pid_namespace, boot_id, socket.gethostname())


@functools.cache
def _host() -> str:
    """Return the machine's name, shortened, with only characters that file names allow."""
    return "".join(c if c in _SAFE else "-" for c in socket.gethostname())[:64]


@functools.cache
def _digest(root: str) -> str:
    machine = b""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            machine = file.read(64).strip()
            break
    return blake2s(machine + b"\0" + os.fsencode(root), digest_size=6).hexdigest()
