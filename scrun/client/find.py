"""Find the containers under a root directory, also by the beginning of an id."""

import os

from scrun.cli.parse import Parsed
from scrun.core.errors import StateError, UnknownContainer, UsageError
from scrun.core.paths import has_record
from scrun.oci.ids import is_id


def containers(root: str) -> list[str]:
    """Return the ids under a root directory, sorted; none if the directory does not exist.

    Raises:
        OSError: It cannot be read.
    """
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return sorted(filter(is_id, names))


def resolve_id(parsed: Parsed, root: str) -> str:
    """Return the whole id: the given one if it exists, or the only one that begins with it.

    Only for commands that people type: engines know whole ids, and no container should end because
    of an abbreviation.

    Raises:
        UsageError: Several ids begin with it.
    """
    given = parsed.id or ""
    if os.path.lexists(os.path.join(root, given)):
        return given
    try:
        found = [name for name in containers(root) if name.startswith(given)]
    except OSError:
        found = []
    if len(found) > 1:
        raise UsageError(f"container {given}: is ambiguous: {', '.join(found)}: give more of it")
    return found[0] if found else given


def explain_unserved(directory: str) -> "UnknownContainer | StateError":
    """Return the error that says why no supervisor serves a container.

    Raises:
        OSError: The root directory cannot be read.
    """
    container = os.path.basename(directory)
    if not has_record(directory):
        return UnknownContainer(f"container {container} does not exist")
    return StateError(f"container {container} is stopped: its supervisor is gone; delete it")
