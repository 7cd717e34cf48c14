"""The scrun that engines are told to call."""

import os
import shutil
import stat
import sys

from scrun.core.errors import SettingsError
from scrun.core.paths import of_path, replaceable

_CALL = b"scrun._fast"


def find(argv0: str, path: str | None) -> str:
    """Return the absolute path of the scrun that runs.

    A symbolic link in it stays: a new version may move what it points to.

    Args:
        argv0: How it was called.
        path: PATH, for a call that says no place.

    Raises:
        SettingsError: No file says how to call it, or engines could not be told its name.
    """
    found = argv0 if os.sep in argv0 else shutil.which(argv0 or "scrun", path=path)
    if found is None or not is_ours(found):
        raise SettingsError(
            f"{argv0 or 'scrun'}: not the command that engines could call; install scrun "
            "(pip install), and call it by that"
        )
    program = os.path.abspath(found)
    if not program.isprintable():
        raise SettingsError(
            f"{program!r}: engines cannot be told such a name; install it elsewhere"
        )
    return program


def is_ours(program: str) -> bool:
    """Tell whether a program is a launcher of this scrun, and not of Slurm's."""
    try:
        if not os.access(program, os.X_OK):
            return False
        with open(program, "rb") as file:
            return _CALL in file.read(65536)
    except OSError:
        return False


def check_for_all(program: str, package: str) -> None:
    """See to it that all users can run it, and that not all can change it.

    Args:
        program: The launcher.
        package: A file of the package that it imports.

    Raises:
        SettingsError: One of its parts is out of reach.
    """
    remedy = "install scrun for all users, below /opt or /usr/local say"
    for path, need in (
        (program, stat.S_IROTH | stat.S_IXOTH),
        (sys.executable, stat.S_IXOTH),
        (package, stat.S_IROTH),
    ):
        for seen in (path, os.path.realpath(path)):
            if closed := _closed(seen, need):
                raise SettingsError(f"{program}: other users cannot get at {closed}; {remedy}")
        if reason := replaceable(path):
            raise SettingsError(of_path(path, reason))


def _closed(path: str, need: int) -> str | None:
    """Return the part of a path that others cannot pass, or read, or run."""
    folder = os.path.dirname(path)
    while True:
        if not os.stat(folder).st_mode & stat.S_IXOTH:
            return folder
        if folder == os.path.dirname(folder):
            break
        folder = os.path.dirname(folder)
    return None if os.stat(path).st_mode & need == need else path
