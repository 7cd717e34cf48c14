"""Enters the files of a container, for programs of the shim's (`copying`, `live_files`)."""

import os
import sys

from .libc import (
    BELOW,
    DUMPABLE,
    NEW_MOUNTS,
    NO_NEW_RIGHTS,
    PRIVATE,
    attach_mount,
    clone_mount,
    enter,
    join,
    keep_capabilities,
    mount,
    prctl,
    unshare,
)
from .processes import descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CHOWN, _DAC_OVERRIDE, _FOWNER = 0, 1, 3  # capabilities(7)


class Refused(ValueError):
    """It cannot be copied; the text says what and why."""


def enter_files(first: int, over: "Sequence[str] | None" = None, users: int = -1) -> None:
    """Have the files of a container from now on, with no more rights there than files need.

    Args:
        over: Only those of its root file system, also where something is mounted over them; except
            these directories in it, on which are overlays that are parts of it.
        users: A descriptor of the user namespace by whose ids files have owners; -1: the
            container's.

    Raises:
        OSError: The kernel refuses.
        Refused: The process and all below it have the files of the node.
    """
    pid = _inside([first, *descendants(first)])
    prctl(DUMPABLE, 0)  # the container may see us, if it has the node's processes
    if users >= 0:
        enter(users)
        os.close(users)
    else:
        join(pid, "user")
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_CLOEXEC)
    join(pid, "mnt")
    os.fchdir(root)  # a runtime need not have made that the root of the namespace
    os.chroot(".")
    os.chdir("/")
    os.close(root)
    if over is not None:
        _leave_mounts(over)
    try:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    except OSError:  # it has no such user: what we are is the only one
        pass
    prctl(NO_NEW_RIGHTS, 1)
    keep_capabilities(_CHOWN, _DAC_OVERRIDE, _FOWNER)
    prctl(DUMPABLE, 0)  # another user or other namespaces have reset it
    sys.path.clear()
    sys.meta_path.clear()
    os.umask(0o022)


def _leave_mounts(over: "Sequence[str]") -> None:
    """See the root file system alone; `over`: as for `enter_files`."""
    if over:
        unshare(NEW_MOUNTS)
        mount(b"none", b"/", None, BELOW | PRIVATE, None)
    root, *trees = [clone_mount(f"/{name}") for name in ("", *over)]
    if over:
        attach_mount(root, "/")
    os.fchdir(root)
    os.chroot(".")
    for name, tree in zip(over, trees):
        attach_mount(tree, f"/{name}")
        os.close(tree)
    os.close(root)


def _inside(pids: "Iterable[int]") -> int:
    """Return the first process that is in the container: a runtime has the files of the node.

    Raises:
        OSError: One of them may not be looked into.
        Refused: None of them is.
    """
    own, root = os.stat("/proc/self/ns/mnt"), os.stat("/")
    for pid in pids:
        try:
            mounts, theirs = os.stat(f"/proc/{pid}/ns/mnt"), os.stat(f"/proc/{pid}/root")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if not (os.path.samestat(own, mounts) or os.path.samestat(root, theirs)):
            return pid
    raise Refused("the container has no files of its own here: nothing was copied")
