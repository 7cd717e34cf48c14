"""Records appear and disappear as a whole."""

import contextlib
import errno
import os
import tempfile

from scrun.errors import ContainerExists, SettingsError, StagingError
from scrun.paths import has_record
from scrun.record import Record, write_record
from supervisor.staging.files import remove

_TEMPORARY = "@tmp"


def make_record(directory: str, socket: str) -> None:
    """Make the directory of a record; whoever makes it first has the id.

    It gets its name when all is in it that a reader needs: no half-made one is ever seen.

    Raises:
        ContainerExists: Somebody has.
        SettingsError: It cannot be made there.
    """
    root, container = os.path.split(directory)
    try:
        if os.path.lexists(directory):
            if has_record(directory):
                raise ContainerExists.named(container)
            raise SettingsError(f"{directory}: is there, and is no directory: remove it")
        _make(root, container, socket)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ContainerExists.named(container) from None
        raise SettingsError.of_root(root, error.strerror or str(error)) from error


def _make(root: str, container: str, socket: str) -> None:
    made = tempfile.mkdtemp(prefix=_TEMPORARY + socket, dir=root)
    try:
        os.symlink(os.path.join("..", socket), os.path.join(made, "supervisor"))
        write_record(made, Record(id=container))
        os.rename(made, os.path.join(root, container))
    except BaseException:
        with contextlib.suppress(OSError):
            _discard(root, os.path.basename(made))
        raise


def remove_record(directory: str) -> None:
    """Remove a record: its name first, so that nobody sees half of it.

    What is mounted in it is left alone: a script may have mounted an image there.

    Raises:
        StagingError: Something is mounted in it.
        OSError: It cannot be removed.
    """
    root, container = os.path.split(directory)
    doomed = tempfile.mkdtemp(prefix=_TEMPORARY + _server_of(directory), dir=root)
    try:
        os.rename(directory, os.path.join(doomed, container))
    except FileNotFoundError:
        pass
    try:
        _discard(root, os.path.basename(doomed))
    except StagingError as error:
        raise StagingError(f"{root}/{error}: unmount it, and remove {doomed}") from None


def remove_half_made(root: str, socket: str) -> None:
    """Remove what a supervisor of this name left when it was killed in the midst of the above."""
    for entry in os.listdir(root):
        if entry.startswith(_TEMPORARY + socket):
            with contextlib.suppress(OSError, StagingError):
                _discard(root, entry)


def _discard(root: str, name: str) -> None:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove(folder, name, os.fstat(folder).st_dev)
    finally:
        os.close(folder)


def _server_of(directory: str) -> str:
    try:
        return os.path.basename(os.readlink(os.path.join(directory, "supervisor")))
    except OSError:
        return ""
