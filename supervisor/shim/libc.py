"""Calls functions of the C library that Python's `os` does not have.

Each raises OSError if the kernel refuses.

`ctypes` takes 3 ms to import, `_ctypes`, which it is made of, a tenth of that.
"""

import _ctypes
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

NEW_MOUNTS, NEW_USERS, NEW_NETWORK = 0x20000, 0x10000000, 0x40000000
BELOW, PRIVATE, SLAVE = 0x4000, 1 << 18, 0x80000
DUMPABLE, SUBREAPER, NO_NEW_RIGHTS, AMBIENT = 4, 36, 38, 47
_DROP = 24
_KEEP_SIZE = 1
_OWNER = 0xB701  # NS_GET_USERNS, ioctl_ns(2)
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_CLONE, _NO_LINK, _FROM_DESCRIPTOR = 1, 0x100, 4

_LIBC = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
_VERSION_3 = 0x20080522  # capget(2)


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _Word(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "L"


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class _Text(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "z"


class _Half(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "I"


class _Head(_ctypes.Array):  # type: ignore[type-arg]
    _type_, _length_ = _Half, 2


class _Sets(_ctypes.Array):  # type: ignore[type-arg]
    _type_, _length_ = _Half, 6


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


def _call(name: str, types: "Sequence[type[Any]]", *arguments: object) -> None:
    """Call a function whose result says whether it has failed.

    Raises:
        OSError: It has.
    """
    function: Callable[..., int] = _Function(_ctypes.dlsym(_LIBC, name))
    function.argtypes = types  # type: ignore[attr-defined]
    if function(*arguments):
        number = _ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def prctl(option: int, first: int, second: int = 0) -> None:
    """Change something about this process (prctl(2))."""
    _call("prctl", (_Int, _Word, _Word, _Word, _Word), option, first, second, 0, 0)


def unshare(kinds: int) -> None:
    """Be in new namespaces (unshare(2))."""
    _call("unshare", (_Int,), kinds)


def enter(fd: int, kind: int = 0) -> None:
    """Be in a namespace (setns(2))."""
    _call("setns", (_Int, _Int), fd, kind)


def join(pid: int, kind: str) -> None:
    """Be in a process' namespace of a kind, as in /proc/PID/ns, unless we are.

    Raises:
        OSError: The kernel refuses, or the process is not there.
    """
    path = f"/proc/{pid}/ns/{kind}"
    if _is_ours(path, kind):
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        enter(fd)
    finally:
        os.close(fd)


def join_network(pid: int) -> None:
    """Be in a process' network, and in the user namespace that has rights there.

    That may be one around the process' own.

    Raises:
        OSError: The kernel refuses, or the process is not there.
    """
    if _is_ours(f"/proc/{pid}/ns/net", "net"):
        return
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        owner = fcntl.ioctl(network, _OWNER)
        try:
            if not _is_ours(f"/proc/self/fd/{owner}", "user"):
                enter(owner)
        finally:
            os.close(owner)
        enter(network)
    finally:
        os.close(network)


def _is_ours(path: str, kind: str) -> bool:
    return os.readlink(path) == os.readlink(f"/proc/self/ns/{kind}")


def mount(
    source: bytes, target: bytes, kind: "bytes | None", flags: int, options: "bytes | None"
) -> None:
    """Mount something, or change a mount (mount(2))."""
    types = (_Text, _Text, _Text, _Word, _Text)
    _call("mount", types, source, target, kind, flags, options)


def clone_mount(path: str) -> int:
    """Open a copy of the mount that a path, no link, is on, without those below (open_tree(2)).

    Raises:
        OSError: The kernel refuses, or is older than 5.2.
    """
    types, flags = (_Long, _Int, _Text, _Int), _CLONE | _NO_LINK | os.O_CLOEXEC
    return _system_call(types, _OPEN_TREE, -1, os.fsencode(path), flags)


def attach_mount(fd: int, path: str) -> None:
    """Mount a copy at a path (move_mount(2))."""
    types = (_Long, _Int, _Text, _Int, _Text, _Int)
    _system_call(types, _MOVE_MOUNT, fd, b"", -1, os.fsencode(path), _FROM_DESCRIPTOR)


def _system_call(types: "Sequence[type[Any]]", *arguments: object) -> int:
    function: Callable[..., int] = _Function(_ctypes.dlsym(_LIBC, "syscall"))
    function.argtypes = types  # type: ignore[attr-defined]
    result = function(*arguments)
    if result < 0:
        number = _ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def reserve(fd: int, offset: int, length: int) -> None:
    """Reserve room on the disk for a part of a file, whose length stays (fallocate(2)).

    Raises:
        OSError: There is none, or the file system cannot do that.
    """
    _call("fallocate", (_Int, _Int, _Long, _Long), fd, _KEEP_SIZE, offset, length)


def make_inheritable(capability: int) -> None:
    """Have programs of this process inherit a capability, as far as they may (capset(2))."""
    head, sets = _Head(_VERSION_3, 0), _Sets()
    _call("capget", (_Head, _Sets), head, sets)
    sets[2] |= 1 << capability
    _call("capset", (_Head, _Sets), head, sets)


def keep_capabilities(*kept: int) -> None:
    """Have no other capabilities from now on, nor get any by a program (capset(2))."""
    for capability in range(64):
        try:
            prctl(_DROP, capability)
        except OSError:  # that was the last one that the kernel has; or we may not
            break
    head, sets = _Head(_VERSION_3, 0), _Sets()
    _call("capget", (_Head, _Sets), head, sets)
    mask = sum(1 << capability for capability in kept)
    permitted = sets[1] & mask
    sets[0] = sets[1] = permitted
    sets[2] = sets[3] = sets[4] = sets[5] = 0
    _call("capset", (_Head, _Sets), head, sets)
