"""Mounts a file system of a container's files where engines look for them.

That is over an anchor's root, or over the root file system that the engine has mounted.

Everything here blocks until its first requests are answered: call it in a thread.
"""

import errno
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress

from scrun.core import namespaces as ns
from scrun.supervisor.contracts.staged import OVERLAY
from scrun.supervisor.core.threads import in_last_thread
from scrun.supervisor.staging.layers import Unusable, parse
from scrun.supervisor.staging.layout import UPPER
from scrun.supervisor.staging.survey import MountPoint, read_mounts

KIND, SOURCE = "fuse", "scrun"
"""As mountinfo has them."""

_GONE = "/proc/thread-self/fdinfo"  # of a thread that has ended


def attach(tree: int, anchor: int, alive: Callable[[], bool]) -> None:
    """Mount the file system over an anchor's root; blocks until its first requests are answered.

    One that a dead supervisor has left there is detached.

    Args:
        tree: `LiveFiles.tree`.

    Raises:
        OSError: It is not permitted, or the root is not that of an anchor.
    """
    in_last_thread(lambda: _attach(tree, anchor, alive))


def _attach(tree: int, anchor: int, alive: Callable[[], bool]) -> None:
    with ExitStack() as stack:
        namespace = os.open(f"/proc/{anchor}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, namespace)
        if not alive():  # then the pid may be another process'
            return
        ns.unshare(ns.NEW_ROOT)
        ns.enter(namespace, ns.NEW_MOUNT)
        while not _is_there():
            ns.detach("/")  # a path with a component would be an error, too
            ns.enter(namespace, ns.NEW_MOUNT)
        if os.listdir("/") != ["proc"]:
            raise OSError(0, "the namespace is not that of an anchor")
        ns.attach_tree(tree, "/")
        os.fchdir(tree)
        ns.mount("/proc", "proc", None, ns.BIND)


def _is_there() -> bool:
    """Tell whether the root directory is not one of a supervisor that has died."""
    try:
        os.listdir("/")
    except OSError as error:
        if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED):
            raise
        return False
    return True


def attach_here(tree: int, path: str, difference: str) -> tuple[MountPoint | None, os.stat_result]:
    """Mount the file system over an engine's root file system; return what is below.

    That is its mount, if it has one, and its root directory.

    Where that is an overlay, the engine also reads the directory with the difference from the
    image (`docker commit`). That is covered, too.

    Args:
        difference: The directory with what the container's own differs by; "": none has that, so
            each access fails.

    Raises:
        OSError: It is not permitted.
    """
    detach_here(path)
    mounts = _mounts_at(path)
    below, directory = mounts[-1] if mounts else None, os.stat(path)
    if below is not None and (own := _difference_of(below)):
        in_last_thread(lambda: _cover(own, difference))
    try:
        ns.attach_tree(tree, path)
    except OSError:
        detach_here(path)
        raise
    return below, directory


def _cover(own: str, difference: str) -> None:
    ns.mount(difference or _GONE, own, None, ns.BIND)
    ns.mount(None, own, None, ns.REMOUNT | ns.BIND | ns.READ_ONLY | ns.NO_SUID | ns.NO_DEVICES)


def _difference_of(mount: MountPoint) -> str:
    """Return the directory that an overlay of an engine writes to; "" for any other mount."""
    if mount.kind != "overlay":
        return ""
    with suppress(Unusable):  # the path may be relative, as for `layers.overlay_of`
        base = os.path.dirname(os.path.dirname(mount.point))
        return os.path.realpath(os.path.join(base, parse(mount.options).layers[0]))
    return ""


def detach_here(path: str, below: MountPoint | None = None) -> None:
    """Detach such mounts, also those of a supervisor that has died.

    Args:
        below: What `attach_here` has returned. An engine that unmounts its root file system while
            ours is over it unmounts ours: so then this unmounts the engine's.
    """
    mounts = _mounts_at(path)
    for own in filter(None, map(_difference_of, [*mounts, *([below] if below else [])])):
        for one in _mounts_at(own):
            if one.kind == "proc" or one.root.endswith(f"/{OVERLAY}/{UPPER}"):
                ns.detach(own)
    ours = [one for one in mounts if (one.kind, one.source) == (KIND, SOURCE)]
    if not ours and below and mounts and mounts[-1] == below:
        ours = mounts[-1:]
    for _ in ours:
        ns.detach(path)


def _mounts_at(path: str) -> list[MountPoint]:
    folder, name = os.path.split(path)  # to look at the last component would be a request
    point = os.path.join(os.path.realpath(folder), name)
    return [one for one in read_mounts() if one.point == point]
