"""Devices of our own in place of this machine's, as standard streams of a runtime that root calls.

See `supervisor.shim.children`: the runtime may give them to the user of a container.
"""

import os

from scrun.supervisor.shim.children import own_device

_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
_opened: dict[str, int] = {}


def spared(stdio: tuple[int, int, int], record: str) -> tuple[int, int, int]:
    """Replace this machine's devices among standard streams, if we are root.

    The descriptors stay the caller's, and new ones stay open for others. Raises OSError if none is
    left.
    """
    if os.geteuid() != 0:
        return stdio
    stdin, stdout, stderr = (_spared(fd, record) for fd in stdio)
    return stdin, stdout, stderr


def _spared(fd: int, record: str) -> int:
    name = os.readlink(f"/proc/self/fd/{fd}") if fd >= 0 else ""
    if name not in _DEVICES:
        return fd
    if name not in _opened:
        _opened[name] = own_device(name, record)
    return _opened[name]
