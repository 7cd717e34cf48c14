"""Directories in shared places, which must be the user's own."""

import os
import stat
from collections.abc import Callable

from scrun.core.errors import StagingError
from scrun.core.paths import replaceable


def make_private(directory: str, remedy: str, clean_up: Callable[[], None] = lambda: None) -> None:
    """Make a directory, if it is missing, that only its owner may enter.

    In a scratch directory for all, somebody else may have made it first, or one above it: then
    what is staged could be replaced by another bundle, and that would be run.

    Args:
        directory: Its path.
        remedy: What to do when it cannot be used.
        clean_up: Called when it is known to be the user's own, before it has to be empty.

    Raises:
        StagingError: It is not the user's alone, or has something in it.
    """
    try:
        if not (reason := replaceable(directory)):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            # what was missing may have been made by somebody meanwhile
            reason = not_ours(directory)
        if reason:
            reason = reason.removeprefix(f"{directory}: ")
            raise StagingError(f"staging in {directory}: {reason}; {remedy}")
        clean_up()
        if os.listdir(directory):
            raise StagingError(f"{directory} is not empty")
        os.chmod(directory, 0o700)
    except OSError as error:
        raise StagingError(f"staging in {directory}: {error.strerror}; {remedy}") from error


def not_ours(directory: str) -> str:
    """Tell why somebody else may have had a hand in what is in a directory, or ""."""
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return "it belongs to somebody else"
    return replaceable(directory)
