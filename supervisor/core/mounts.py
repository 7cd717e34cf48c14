"""The mounts that a container's files are on, where those are not ours.

buildah calls the runtime of each step in a mount namespace of its own, where it has mounted what
the step gets. A thread that works for such a container, and a child that is started for it, see
its mounts. The event loop, which only touches the root directory, and what outlives a container
see ours.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class MountNamespace:
    """A mount namespace; `are_ours`: the supervisor's own."""

    def __init__(self, fd: int = -1) -> None:
        """Take a descriptor of it over (namespaces(7)); -1: ours."""
        self.are_ours = fd < 0
        self._fd = fd

    def fileno(self) -> int:
        """Return the descriptor; -1 if there is none, or after `close`."""
        return self._fd

    def close(self) -> None:
        """Let it go, with its own mounts; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def may_be_entered(self) -> bool:
        """Tell whether a thread may go there, and come back; to be called in a thread.

        It may not without capabilities, or if one of them is of another user namespace.
        """
        try:
            with _here() as ours:
                _enter(ours)
            with self.entered():
                return True
        except OSError:
            return False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this thread see it while the block runs, which does not wait in the event loop.

        Raises OSError if it may not.
        """
        if self.are_ours:
            yield
            return
        with _here() as ours:
            _enter(self._fd)
            try:
                yield
            finally:
                try:
                    _enter(ours)
                except OSError:  # no kernel memory: the thread would go on with wrong mounts
                    os._exit(1)

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Have threads and children of this task, and of tasks that it starts, see it."""
        token = _seen.set(self)
        try:
            yield
        finally:
            _seen.reset(token)


OURS = MountNamespace()
_seen: ContextVar[MountNamespace] = ContextVar("mounts", default=OURS)


def seen_mounts() -> MountNamespace:
    """Return those that this task sees."""
    return _seen.get()


def _enter(fd: int) -> None:
    from scrun.core import namespaces as ns  # few supervisors need it

    ns.unshare(ns.NEW_ROOT)  # setns(2) refuses a thread that shares root and directory with others
    ns.enter(fd, ns.NEW_MOUNT)


@contextmanager
def _here() -> Iterator[int]:
    """Yield a descriptor of this thread's mount namespace."""
    fd = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
