"""The containers under a root directory, and the one that a person means."""

import os

from scrun.cli.parse import Parsed
from scrun.core.errors import StateError, UnknownContainer, UsageError
from scrun.core.paths import has_record
from scrun.oci.ids import is_id


def containers(root: str) -> list[str]:
    """Return the ids under a root directory, sorted.

    Raises:
        OSError: It cannot be read; but it need not be there.
    """
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return sorted(filter(is_id, names))


def meant(parsed: Parsed, root: str) -> str:
    """Return the id that a person means: the one that is there, or the only one that begins so.

    For the commands of people only: engines know whole ids, and nothing is ended by half of one.

    Raises:
        UsageError: Several begin so.
    """
    given = parsed.id or ""
    if os.path.lexists(os.path.join(root, given)):
        return given
    try:
        found = [name for name in containers(root) if name.startswith(given)]
    except OSError:
        found = []
    if len(found) > 1:
        raise UsageError(f"container {given}: which one: {', '.join(found)}?")
    return found[0] if found else given


def unserved(directory: str) -> "UnknownContainer | StateError":
    """Say why nobody answers for a container.

    Raises:
        OSError: That cannot be known.
    """
    container = os.path.basename(directory)
    if not has_record(directory):
        return UnknownContainer(f"container {container} does not exist")
    return StateError(f"container {container} is stopped: its supervisor is gone; delete it")
