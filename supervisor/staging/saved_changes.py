"""Keeps what a container has changed and its root file system could not take.

Everything here blocks: call it in a worker thread.
"""

import os
import tempfile

from scrun.supervisor.contracts.staged import OVERLAY
from scrun.supervisor.staging.layout import PLACE, ROOTFS, uppers_in
from scrun.supervisor.staging.on_node import archives_in

_LONGEST = 200
"""Characters of an id in a name, which has at most 255."""


def kept_prefix(container: str) -> str:
    """Return how the names of a container's kept changes begin.

    No container's id begins so, nor the names that a supervisor looks for.
    """
    return f"~kept-{container[:_LONGEST]}-"


def keep_changes(directory: str, container: str, beside: str) -> str:
    """Move changes out of a staged bundle, which is about to be removed.

    Args:
        beside: A directory on its file system that stays.

    Returns:
        The directory that has them now: copied directories, the upper ones of overlays,
        or archives of these. "" if they are not there.

    Raises:
        OSError: They cannot be moved.
    """
    overlay, copied = os.path.join(directory, OVERLAY), os.path.join(directory, ROOTFS)
    found = archives_in(overlay)
    if not os.path.exists(os.path.join(overlay, PLACE)):  # else they are on the node
        found = uppers_in(overlay)
        if not found and os.path.isdir(copied) and not os.path.islink(copied):
            found = [copied]
    if not found:
        return ""
    place = tempfile.mkdtemp(prefix=kept_prefix(container), dir=beside)
    for number, path in enumerate(found):
        os.rename(path, os.path.join(place, f"{number}-{os.path.basename(path)}"))
    return place
