"""Shows a container's files in the namespaces of its anchor, for commands like `podman cp`."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.contracts.staged import View
from scrun.supervisor.core.places import program
from scrun.supervisor.log.journal import Journal

_PROGRAM = program("programs", "show_files")
_PATIENCE = 10.0


async def show(
    anchor: int, view: View | None, journal: Journal, alive: Callable[[], bool]
) -> None:
    """Show what can be shown; else the anchor's root stays empty, and the log says why.

    No engine enters the namespaces of an anchor that has a user namespace of its own or shares
    ours: the container's user has no right to.

    Args:
        anchor: The anchor's pid.
        view: What to show.
        journal: The container's log.
        alive: Tells whether the anchor lives, so that the pid is still its own.
    """
    why = _why_not(anchor, view)
    if why is None and view is not None:
        with trio.move_on_after(_PATIENCE) as patience:
            why = await _run(anchor, view, alive)
        if patience.cancelled_caught:
            why = f"it took longer than {_PATIENCE:g} s"
    if why:
        journal.write("info", f"commands like `podman cp` do not see the container's files: {why}")


def _why_not(anchor: int, view: View | None) -> str | None:
    """Return why nothing can be shown; None if it can, "" if that needs no message."""
    try:
        mine, theirs = (
            [os.stat(f"/proc/{pid}/ns/{kind}").st_ino for kind in ("user", "mnt")]
            for pid in ("self", anchor)
        )
    except OSError:  # it is gone
        return ""
    if mine[1] == theirs[1]:
        return (
            "user namespaces are not permitted here, so its anchor is in the namespaces of this "
            "host"
        )
    if mine[0] != theirs[0]:
        return ""
    if view is None:
        return "this host does not know where its root file system is"
    if view.rootfs == "/":
        return "its root file system is that of the node"
    return None


async def _run(anchor: int, view: View, alive: Callable[[], bool]) -> str:
    """Run the program; return what went wrong, or ""."""
    errors: list[str] = []
    with closing(os.open(f"/proc/{anchor}/ns/mnt", os.O_RDONLY)) as namespace:
        if not alive():  # then the pid may be another process'
            return ""
        with closing(os.memfd_create("view")) as stdin:
            os.write(stdin, encoded(view))
            os.lseek(stdin, 0, os.SEEK_SET)
            argv = [sys.executable, "-I", "-S", _PROGRAM, str(namespace)]
            env = ChildEnv(environment={})
            async with (
                messages(errors.append) as stderr,
                child(argv, env, stdin=stdin, stderr=stderr, pass_fds=(namespace,)) as running,
            ):
                status = await running.wait()
    return (errors[-1] if errors else f"status {status}") if status else ""


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor when the block is left."""
    try:
        yield fd
    finally:
        os.close(fd)


def encoded(view: View) -> bytes:
    r"""Encode a view for the program: records that end with NUL and newline, fields with NUL.

    First the root file system, the bundle, and 1 or 0 for read_only and elsewhere; then, for each
    place, its path, its source, and 1 or 0 for read_only and own. No path has a NUL in it.
    """
    fields = [(view.rootfs, view.bundle, "01"[view.read_only], "01"[view.elsewhere])]
    mounts = [
        (mount.path, mount.source, "01"[mount.read_only], "01"[mount.own]) for mount in view.places
    ]
    return b"".join(
        b"\0".join(map(os.fsencode, record)) + b"\0\n" for record in [*fields, *mounts]
    )
