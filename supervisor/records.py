"""Records appear and disappear as a whole."""

import errno
import os
import shutil
import tempfile

from scrun.errors import ContainerExists
from scrun.record import Record, write_record

_TEMPORARY = "@tmp"


def make_record(directory: str, socket: str, record: Record) -> None:
    """Make the directory of a record; whoever makes it first has the id.

    It gets its name when all is in it that a reader needs: no half-made one is ever seen.

    Raises:
        ContainerExists: Somebody has.
        OSError: It cannot be made.
    """
    root, container = os.path.split(directory)
    if os.path.lexists(directory):
        raise ContainerExists.named(container)
    made = tempfile.mkdtemp(prefix=_TEMPORARY + socket, dir=root)
    try:
        os.symlink(os.path.join("..", socket), os.path.join(made, "supervisor"))
        write_record(made, record)
        os.rename(made, directory)
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ContainerExists.named(container) from None
        raise


def remove_record(directory: str) -> None:
    """Remove a record: its name first, so that nobody sees half of it."""
    root, container = os.path.split(directory)
    doomed = tempfile.mkdtemp(prefix=_TEMPORARY + _server_of(directory), dir=root)
    try:
        os.rename(directory, os.path.join(doomed, container))
    except FileNotFoundError:
        pass
    shutil.rmtree(doomed)


def remove_half_made(root: str, socket: str) -> None:
    """Remove what a supervisor of this name left when it was killed in the midst of the above."""
    for entry in os.listdir(root):
        if entry.startswith(_TEMPORARY + socket):
            shutil.rmtree(os.path.join(root, entry), ignore_errors=True)


def _server_of(directory: str) -> str:
    try:
        return os.path.basename(os.readlink(os.path.join(directory, "supervisor")))
    except OSError:
        return ""
