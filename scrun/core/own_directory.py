"""Make the root directory if it is missing, and refuse one that others could write to."""

import os

from scrun.core.errors import SettingsError
from scrun.core.paths import replaceable


def own_directory(path: str) -> None:
    """Make the root directory if it is missing; refuse one that others could write to."""
    umask = os.umask(0o077)
    os.umask((umask | 0o022) & 0o077)  # for those that are made, whatever the caller's umask is
    try:
        if reason := replaceable(path):
            raise SettingsError.of_root(path, reason)
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.stat(path)
        reason = replaceable(path)  # again, with the directories that were missing
    except FileExistsError:
        raise SettingsError.of_root(path, "is not a directory") from None
    except OSError as error:
        raise SettingsError.of_root(path, error) from error
    finally:
        os.umask(umask)
    if status.st_uid != os.geteuid():
        reason = f"belongs to uid {status.st_uid}"
    if reason:
        raise SettingsError.of_root(path, reason)
    if status.st_mode & 0o022:
        raise SettingsError(f"root directory {path}: others may write to it; chmod 700 it")
