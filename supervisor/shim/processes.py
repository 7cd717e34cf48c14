"""Looks for processes in /proc, and sends them signals."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container


def children_of(pid: int) -> "list[int]":
    """Return the children of a process, as far as they can be read."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:  # it has ended
        pass
    return found


def descendants(pid: int, apart: "Container[int]" = ()) -> "list[int]":
    """Return the children of a process, their children, and so on.

    Args:
        pid: The process.
        apart: Processes that do not count, nor do their descendants.
    """
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = [child for child in children_of(waiting.pop()) if child not in apart]
        found += children
        waiting += children
    return found


def kill_quietly(pid: int, number: int) -> None:
    """Send a signal to a process that may have gone, or may be another user's."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
