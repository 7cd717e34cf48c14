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


def remove_record(directory: str, socket: str) -> None:
    """Remove a record: its name first, so that nobody sees half of it.

    Args:
        directory: It.
        socket: The name of the supervisor that does so, and removes what this has left when it
            goes.
    """
    root = os.path.dirname(directory)
    # a name and nothing else: on a full file system there is no other way to make space
    doomed = os.path.join(root, f"{_TEMPORARY}{socket}{os.urandom(4).hex()}")
    try:
        os.rename(directory, doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed)


def remove_half_made(root: str, socket: str) -> None:
    """Remove what a supervisor of this name has left in the midst of the above.

    It was killed, or had no descriptor.
    """
    try:
        entries = os.listdir(root)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.startswith(_TEMPORARY + socket):
            shutil.rmtree(os.path.join(root, entry), ignore_errors=True)
