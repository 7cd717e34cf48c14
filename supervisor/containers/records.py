"""Records appear and disappear as a whole."""

import contextlib
import errno
import fcntl
import os
import random
import tempfile

from scrun.core.errors import ContainerExists, SettingsError, StagingError
from scrun.core.paths import has_record
from scrun.model.record import Record, write_record
from scrun.protocol import wire
from scrun.supervisor.core.files import remove
from scrun.supervisor.core.ownership import own

_TEMPORARY = "@tmp"
_LOCK = ".lock"
_AT_ONCE = 20
_RANDOM = 8  # characters, as tempfile has them


def make_record(directory: str, socket: str, record: Record) -> int:
    """Make the directory of a record; whoever makes it first has the id.

    It gets its name when all is in it that a reader needs: no half-made one is ever seen, and none
    that nobody owns.

    Returns:
        The descriptor that holds its lock.

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
        return _make(root, socket, record)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ContainerExists.named(container) from None
        raise SettingsError.of_root(root, error.strerror or str(error)) from error


def _make(root: str, socket: str, record: Record) -> int:
    made = tempfile.mkdtemp(prefix=_TEMPORARY + socket, dir=root)
    lock: int | None = None
    try:
        lock = own(made)
        assert lock is not None  # nobody else has its name
        os.symlink(os.path.join("..", socket), os.path.join(made, "supervisor"))
        write_record(made, record)
        os.rename(made, os.path.join(root, record.id))
    except BaseException:
        if lock is not None:
            os.close(lock)
        with contextlib.suppress(OSError):
            _discard(root, os.path.basename(made))
        raise
    return lock


def remove_record(directory: str, socket: str) -> None:
    """Remove a record: its name first, so that nobody sees half of it.

    What is mounted in it is left alone: a script may have mounted an image there.

    Args:
        directory: It.
        socket: The name of the supervisor that does so, and removes what this has left when it
            goes.

    Raises:
        StagingError: Something is mounted in it.
        OSError: It cannot be removed.
    """
    root = os.path.dirname(directory)
    # a name and nothing else: on a full file system there is no other way to make space
    doomed = f"{_TEMPORARY}{socket}{os.urandom(_RANDOM // 2).hex()}"
    try:
        os.rename(directory, os.path.join(root, doomed))
    except FileNotFoundError:
        return
    try:
        _discard(root, doomed)
    except StagingError as error:
        raise StagingError(f"{root}/{error}: unmount it, and remove {root}/{doomed}") from None


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
            with contextlib.suppress(OSError, StagingError):
                _discard(root, entry)


def _discard(root: str, name: str) -> None:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove(folder, name, os.fstat(folder).st_dev)
    finally:
        os.close(folder)


def remove_of_the_dead(root: str, socket: str) -> None:
    """Remove the sockets and locks of supervisors that were killed, and what they had half-made.

    If each container or pod has its own, there may never be another one of that name. So whichever
    goes looks at some of the others.

    Args:
        root: The root directory.
        socket: The name of the one that goes.
    """
    try:
        entries = os.listdir(root)
    except FileNotFoundError:
        return
    names = {entry.removesuffix(_LOCK) for entry in entries if entry.endswith(_LOCK)}
    # one that had no descriptor when it went has left these without a lock
    begun = {entry for entry in entries if entry.startswith(_TEMPORARY)}
    names |= {entry.removeprefix(_TEMPORARY)[:-_RANDOM] for entry in begun}
    others = sorted(name for name in names - {socket} if name.startswith("@"))
    for name in random.sample(others, min(len(others), _AT_ONCE)):
        try:
            _remove_if_dead(root, name)
        except OSError:
            pass  # somebody starts it at this moment, or nothing can be known of it


def _remove_if_dead(root: str, name: str) -> None:
    """Remove what is left of a supervisor, if nobody listens and nobody is about to.

    Raises:
        OSError: That cannot be known.
    """
    path = os.path.join(root, name)
    lock = os.open(path + _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), os.stat(path + _LOCK)):
            return
        try:
            wire.connect(root, name).close()
        except wire.NOBODY:
            remove_half_made(root, name)
            if os.path.lexists(path):
                os.unlink(path)
            os.unlink(path + _LOCK)
    finally:
        os.close(lock)
