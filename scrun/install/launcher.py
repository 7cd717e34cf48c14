"""Find the program scrun that engines will call."""

import os
import shutil
import stat
import sys
from pathlib import Path

from scrun.core.errors import SettingsError
from scrun.core.paths import of_path, replaceable

_CALL = b"share/scrun/main.py"
_LARGEST = 8 << 20  # of the client in C, with its libraries


def find(argv0: str, path: str | None) -> str:
    """Return the absolute path of the running scrun.

    Symbolic links are not resolved: a new version may move their targets. A name that cannot be
    written into the engines' configuration is refused.
    """
    found = argv0 if os.sep in argv0 else shutil.which(argv0 or "scrun", path=path)
    if found is None or not is_ours(found):
        raise SettingsError(
            f"{argv0 or 'scrun'}: is not a command that engines can call; install scrun "
            "(pip install), and call the installed command"
        )
    program = os.path.abspath(found)
    if not program.isprintable():
        raise SettingsError(
            f"{program!r}: cannot be written into an engine's configuration; install it elsewhere"
        )
    return program


def is_ours(program: str) -> bool:
    """Tell whether a program is this scrun, the client in C or the script, and not Slurm's."""
    try:
        if not os.access(program, os.X_OK):
            return False
        with open(program, "rb") as file:
            return _CALL in file.read(_LARGEST)
    except OSError:
        return False


def check_for_all(program: str, package: str) -> None:
    """Check that all users can run it, and that they cannot change it or the package."""
    remedy = "install scrun for all users, for example below /opt or /usr/local"
    for path, need in (
        (program, stat.S_IROTH | stat.S_IXOTH),
        (sys.executable, stat.S_IXOTH),
        (package, stat.S_IROTH),
    ):
        for seen in (path, os.path.realpath(path)):
            if closed := _closed(seen, need):
                raise SettingsError(f"{program}: other users cannot reach {closed}; {remedy}")
        if reason := replaceable(path):
            raise SettingsError(of_path(path, reason))


def _closed(path: str, need: int) -> str | None:
    """Return the component of a path that others cannot enter, read or run, or None."""
    for folder in map(str, Path(path).parents):
        if not os.stat(folder).st_mode & stat.S_IXOTH:
            return folder
    return None if os.stat(path).st_mode & need == need else path
