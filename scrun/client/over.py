"""Delete a container of which only the record is left.

Its supervisor has undone all else before it ended. That of a pod, which podman's first container
has, ends before podman calls `delete`; to start another one takes longer than all of `start`.
"""

import fcntl
import json
import os

from scrun.core.errors import StagingError
from scrun.core.paths import read_regular
from scrun.core.trees import remove_tree
from scrun.model.lost import LOST

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def remove_over(directory: str, socket: str) -> bool:
    """Remove the record of a container if nothing else is left of it.

    Args:
        directory: The record.
        socket: The name of the supervisor that removes what we leave should we be killed.

    Returns:
        Whether it has been removed. If not, a supervisor has to look after it, or say why not.

    Raises:
        StagingError: Something is mounted in it.
        OSError: It cannot be removed.
    """
    try:
        lock = os.open(f"{directory}/lock", _FLAGS)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_over(directory, lock):
            return False
    except (OSError, ValueError, RecursionError):  # somebody works on it, or it is damaged
        return False
    else:
        _remove(directory, socket)
        return True
    finally:
        os.close(lock)


def _is_over(directory: str, lock: int) -> bool:
    """Tell whether the record is the caller's own, and the last thing left of a container.

    Of one that was lost, more may be left than its record says.
    """
    for path in (directory, os.path.dirname(directory)):
        if os.lstat(path).st_uid != os.geteuid():
            return False
    if not os.path.samestat(os.fstat(lock), os.stat(f"{directory}/lock")):
        return False  # whoever held it has removed that one
    if not os.path.islink(f"{directory}/supervisor"):
        return False
    # a `Record`, the import of which would take longer than all the rest
    record = json.loads(read_regular(f"{directory}/state.json"))
    if not isinstance(record, dict) or record.get("status") != "stopped":
        return False
    annotations = record.get("annotations", {})
    if not isinstance(annotations, dict):
        return False
    is_left = record.get("job_id") and record.get("owns_job") is not False
    is_lost = LOST.items() <= annotations.items()
    return not (is_left or record.get("staged") or record.get("moved") or is_lost)


def _remove(directory: str, socket: str) -> None:
    root = os.path.dirname(directory)
    removed = f"{root}/@tmp{socket}{os.urandom(4).hex()}"
    os.rename(directory, removed)
    while os.path.lexists(removed):
        try:
            remove_tree(removed)
        except FileNotFoundError:
            pass  # a supervisor of that name has been started meanwhile, and removes it as well
        except StagingError as error:
            raise StagingError(f"{root}/{error}: unmount it, and remove {removed}") from None
