"""Namespaces and mounts: the system calls that Python's `os` does not have.

Importing `_ctypes` takes 0.6 ms, `ctypes` 2.5 ms: so this module does the little that it needs of
`ctypes` itself.
"""

import _ctypes
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NEW_ROOT = 0x200  # and working directory, and umask: what threads share (CLONE_FS)
NEW_MOUNT, NEW_CGROUP = 0x20000, 0x02000000
NEW_UTS, NEW_IPC, NEW_USER = 0x04000000, 0x08000000, 0x10000000
NEW_PID, NEW_NETWORK = 0x20000000, 0x40000000

READ_ONLY, NO_SUID, NO_DEVICES, NO_PROGRAMS = 1, 2, 4, 8
REMOUNT, BIND, RECURSIVE, PRIVATE = 32, 4096, 16384, 1 << 18

_DETACH = 2
_AT_HERE = -100
_EMPTY_PATH = 0x1000
# the same numbers on every architecture; glibc wraps the first two only since 2.36
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2 = 428, 429, 437
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FLAG, _STRING, _CREATE = 0, 1, 6
_NO_MAGIC_LINKS, _IN_ROOT = 0x02, 0x10
_CLONE, _AND_BELOW, _CLOSE_ON_EXEC = 1, 0x8000, posix.O_CLOEXEC
_MOVE_FROM_DESCRIPTOR = 4
_IS_WRITTEN = 0x8  # IN_CLOSE_WRITE

_LIBC = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class _Text(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "z"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


def _function(name: str, *arguments: "type[_Int | _Long | _Text]") -> "Callable[..., int]":
    """Return a function of the C library, whose result -1 means an error."""
    found = _Function(_ctypes.dlsym(_LIBC, name))
    found.argtypes = arguments
    return found


_unshare = _function("unshare", _Int)
_setns = _function("setns", _Int, _Int)
_mount = _function("mount", _Text, _Text, _Text, _Long, _Text)
_umount2 = _function("umount2", _Text, _Int)
_pivot_root = _function("pivot_root", _Text, _Text)


def news_of_files(paths: "Iterable[str]") -> int:
    """Return a descriptor that is readable when one of the files has been written (inotify(7)).

    Raises:
        OSError: One is not there, or no descriptor is left.
    """
    begin = _function("inotify_init1", _Int)
    watch = _function("inotify_add_watch", _Int, _Text, _Int)
    news = _checked(begin(_CLOSE_ON_EXEC | posix.O_NONBLOCK), "inotify_init1")
    try:
        for path in paths:
            _checked(watch(news, _encoded(path), _IS_WRITTEN), path)
    except OSError:
        posix.close(news)
        raise
    return news


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = _ctypes.get_errno()
        raise OSError(number, posix.strerror(number), what)
    return result


def _encoded(text: str) -> bytes:
    """As `wire.encoded`, which is above; a module for one line would slow every command down."""
    return text.encode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


def unshare(kinds: int) -> None:
    """Move this thread to new namespaces (unshare(2))."""
    _checked(_unshare(kinds), "unshare")


def enter(fd: int, kind: int) -> None:
    """Join a namespace (setns(2))."""
    _checked(_setns(fd, kind), "setns")


def map_own_ids(uid: int, gid: int) -> None:
    """Map, in a new user namespace, one user and one group to themselves."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        file = posix.open(f"/proc/self/{name}", posix.O_WRONLY)  # open() would import a codec
        posix.write(file, text.encode())
        posix.close(file)


def mount(
    source: "str | None", target: str, kind: "str | None", flags: int, data: str = ""
) -> None:
    """Mount something, or change a mount (mount(2))."""
    texts = [None if text is None else _encoded(text) for text in (source, target, kind, data)]
    _checked(_mount(*texts[:3], flags, texts[3]), f"mount {target}")


def become_root() -> None:
    """Make the working directory, a mount, the root; detach the old one (pivot_root(2))."""
    _checked(_pivot_root(b".", b"."), "pivot_root")
    _checked(_umount2(b".", _DETACH), "umount of the old root")


def clone_tree(fd: int) -> int:
    """Copy a mount and those below it, without attaching the copy (open_tree(2), Linux 5.2)."""
    open_tree = _system_call(_Int, _Text, _Int)
    flags = _CLONE | _AND_BELOW | _EMPTY_PATH | _CLOSE_ON_EXEC
    return _checked(open_tree(_OPEN_TREE, fd, b"", flags), "open_tree")


def attach_tree(tree: int, target: str) -> None:
    """Attach a copy of `clone_tree`, perhaps in another mount namespace (move_mount(2))."""
    move_mount = _system_call(_Int, _Text, _Int, _Text, _Int)
    arguments = (tree, b"", _AT_HERE, _encoded(target), _MOVE_FROM_DESCRIPTOR)
    _checked(move_mount(_MOVE_MOUNT, *arguments), "move_mount")


def new_mount(kind: str, flags: int, **options: "str | None") -> int:
    """Return a new mount that is attached nowhere (fsopen(2), fsmount(2), Linux 5.2).

    `flags` are `NO_SUID` and the like; an option of the file system without a value has None.
    """
    fsopen = _system_call(_Text, _Int)
    fsconfig = _system_call(_Int, _Int, _Text, _Text, _Int)
    fsmount = _system_call(_Int, _Int, _Int)
    context = _checked(fsopen(_FSOPEN, _encoded(kind), 1), "fsopen")
    try:
        for name, value in options.items():
            what, text = (_FLAG, None) if value is None else (_STRING, _encoded(value))
            _checked(fsconfig(_FSCONFIG, context, what, _encoded(name), text, 0), name)
        _checked(fsconfig(_FSCONFIG, context, _CREATE, None, None, 0), f"mount {kind}")
        return _checked(fsmount(_FSMOUNT, context, 1, flags), "fsmount")
    finally:
        posix.close(context)


def detach(target: str) -> None:
    """Detach the topmost mount at a path, at once for all who look (umount2(2))."""
    _checked(_umount2(_encoded(target), _DETACH), f"umount {target}")


def open_within(root: int, path: str, flags: int) -> int:
    """Open a path as if a directory were the root: no link leads outside (openat2(2))."""
    openat2 = _system_call(_Int, _Text, _Text, _Long)
    words = (flags | posix.O_CLOEXEC, 0, _NO_MAGIC_LINKS | _IN_ROOT)
    how = b"".join(word.to_bytes(8, sys.byteorder) for word in words)
    return _checked(openat2(_OPENAT2, root, _encoded(path), how, len(how)), path)


def _system_call(*arguments: "type[_Int | _Long | _Text]") -> "Callable[..., int]":
    """Return a function for a system call, which takes its number and its arguments."""
    return _function("syscall", _Long, *arguments)
