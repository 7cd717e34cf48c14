"""Makes and removes records atomically."""

import contextlib
import errno
import fcntl
import os
import random
import tempfile
from collections.abc import Awaitable, Callable, Mapping

from scrun.core.errors import ContainerExists, SettingsError, StagingError
from scrun.core.paths import has_record
from scrun.core.trees import remove, remove_aside
from scrun.model.adoption import is_over
from scrun.model.record import Record, write_record
from scrun.protocol import wire
from scrun.supervisor.core.ownership import own

_TEMPORARY = "@tmp"
_LOCK = ".lock"
_AT_ONCE = 20
_RANDOM = 8  # characters, as tempfile has them


def make_record(directory: str, socket: str, record: Record) -> int:
    """Make the directory of a record; the first one to make it gets the id.

    It is renamed into place when it is complete and locked: nobody ever sees a partial record, or
    one without an owner.

    Returns:
        The descriptor that holds its lock.

    Raises:
        ContainerExists: The id is taken.
        SettingsError: The directory cannot be made.
    """
    root, container = os.path.split(directory)
    try:
        if os.path.lexists(directory):
            if has_record(directory):
                raise ContainerExists.named(container)
            raise SettingsError(f"{directory} exists and is not a directory: remove it")
        return _make(root, socket, record)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ContainerExists.named(container) from None
        raise SettingsError.of_root(root, error, root) from error


async def make_again(
    directory: str,
    socket: str,
    record: Record,
    environment: Mapping[str, str],
    delete: Callable[[], Awaitable[None]],
) -> int:
    """Make a record as `make_record` does; it may replace one whose container is gone.

    Returns:
        The descriptor that holds its lock.

    Raises:
        ContainerExists: The id is taken.
        ScrunError: The old one cannot be deleted, or the new one not be made.
    """
    try:
        return make_record(directory, socket, record)
    except ContainerExists:
        if not is_over(directory, environment):
            raise
    await delete()
    return make_record(directory, socket, record)


def _make(root: str, socket: str, record: Record) -> int:
    made = tempfile.mkdtemp(prefix=_TEMPORARY + socket, dir=root)
    lock: int | None = None
    try:
        lock = own(made)
        assert lock is not None  # nobody else knows its name
        link(made, socket)
        write_record(made, record)
        os.rename(made, os.path.join(root, record.id))
    except BaseException:
        if lock is not None:
            os.close(lock)
        with contextlib.suppress(OSError):
            _discard(root, os.path.basename(made))
        raise
    return lock


def link(directory: str, socket: str) -> None:
    """Make a record lead to a supervisor's socket."""
    temporary = os.path.join(directory, ".supervisor")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(os.path.join("..", socket), temporary)
    os.rename(temporary, os.path.join(directory, "supervisor"))


def remove_record(directory: str, socket: str) -> None:
    """Remove a record, if it is there; `socket` is the name of this supervisor.

    Raises:
        StagingError: Something is mounted in it.
        OSError: It cannot be removed.
    """
    removed = f"{_TEMPORARY}{socket}{os.urandom(_RANDOM // 2).hex()}"
    with contextlib.suppress(FileNotFoundError):
        remove_aside(directory, os.path.join(os.path.dirname(directory), removed))


def remove_half_made(root: str, socket: str) -> None:
    """Remove the partial records that a supervisor of this name left when it was killed."""
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
    """Remove sockets, locks and partial records of supervisors that were killed.

    If each container or pod has its own supervisor, no other one with that name may ever start. So
    each one that ends checks some others.
    """
    try:
        entries = os.listdir(root)
    except FileNotFoundError:
        return
    names = {entry.removesuffix(_LOCK) for entry in entries if entry.endswith(_LOCK)}
    # a supervisor without a free descriptor leaves these without a lock
    begun = {entry for entry in entries if entry.startswith(_TEMPORARY)}
    names |= {entry.removeprefix(_TEMPORARY)[:-_RANDOM] for entry in begun}
    others = sorted(name for name in names - {socket} if name.startswith("@"))
    for name in random.sample(others, min(len(others), _AT_ONCE)):
        try:
            _remove_if_dead(root, name)
        except OSError:
            pass  # it is being started right now, or cannot be checked


def _remove_if_dead(root: str, name: str) -> None:
    """Remove the files of a supervisor, unless it listens or is being started.

    Raises:
        OSError: That cannot be determined.
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
