"""Leases and locks of a store: an image that a container uses is not removed.

A lease is a file, `leases/KEY/HOLDER`. Nobody has to give it back: it is void as soon as the
container's record is gone and the process that took it has ended. What happens on another machine
cannot be seen from here, so a lease from there holds for a month.

A lock, one for each key, is held by whoever makes or removes an image, or leases it. flock(2)
reaches other machines on NFS and on most parallel file systems. Where it does not, two machines
may make the same image at once: one of them loses by the rename, and nothing breaks.
"""

import contextlib
import errno
import fcntl
import os
import time
from _blake2 import blake2s
from collections.abc import Callable, Iterator

import msgspec

from scrun.core.typed import decode_as
from scrun.core.whole_files import write_whole
from scrun.model.identity import is_dead, myself
from scrun.model.record import ProcessIdentity

_INTERVAL = 0.2
_LONGEST = 200
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Lock:
    """A lock that is held; what its holder says is for those who wait."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, text: str) -> None:
        """Tell those who wait how far it is: "3.1 of 9.8 GiB"."""
        with contextlib.suppress(OSError):
            content = text.encode(errors="replace")[:_LONGEST]
            os.pwrite(self._fd, content, 0)
            os.ftruncate(self._fd, len(content))

    def is_at(self, path: str) -> bool:
        """Tell whether the lock's file is still there, for a file that its holder may remove."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(path, follow_symlinks=False))
        except FileNotFoundError:
            return False


@contextlib.contextmanager
def locked(
    path: str,
    *,
    shared: bool = False,
    waiting: Callable[[str], None] = lambda said: None,
) -> Iterator[Lock]:
    """Hold a lock; blocks while somebody else does.

    Its file is made, and stays. Others may hold a `shared` one as well, in the same way. `waiting`
    is called now and then while somebody else holds it, with what that one says; it may raise, to
    wait no longer.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while not _take(fd, kind):
            waiting(os.pread(fd, _LONGEST, 0).decode(errors="replace"))
            time.sleep(_INTERVAL)
        lock = Lock(fd)
        if not shared:
            lock.say("")
        yield lock
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked_if_free(path: str) -> Iterator[bool]:
    """Hold a lock if nobody else does, and it is still the file's; yields whether it is held."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield _take(fd, fcntl.LOCK_EX) and Lock(fd).is_at(path)
    finally:
        os.close(fd)


def _take(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True


_MONTH = 30 * 86400.0
_LARGEST = 65536


class Lease(msgspec.Struct, frozen=True):
    """Who uses an image: a record, and the process that took the lease, before there was one."""

    id: str
    root: str
    taker: ProcessIdentity

    def holds(self) -> bool:
        """Return whether the container may still use the image."""
        mine = myself()
        if self.taker.host != mine.host:
            return True
        return os.path.isdir(os.path.join(self.root, self.id)) or not is_dead(self.taker)


def lease_of(root: str, container: str) -> Lease:
    """Return a lease for a container that this process makes."""
    return Lease(container, os.path.abspath(root), myself())


def take(folder: str, lease: Lease) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_whole(os.path.join(folder, _name(lease)), msgspec.json.encode(lease))


def give_back(folder: str, lease: Lease) -> None:
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, _name(lease)))


def those_that_hold(folder: str) -> list[Lease]:
    """Return the leases of an image that hold; removes those that do not.

    One that cannot be read holds for a month: nobody knows whose it is. What was being written
    when its process was killed, or the disk was full, does not count.
    """
    found = []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    for name in sorted(names):
        if "." in name:
            continue
        path, old = os.path.join(folder, name), False
        try:
            old = time.time() - os.stat(path).st_mtime > _MONTH
            with open(path, "rb") as file:
                lease = decode_as(file.read(_LARGEST), Lease)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError):
            lease = Lease(name, "", ProcessIdentity(0))
        elsewhere = lease.taker.host != myself().host
        if (elsewhere and old) or not lease.holds():
            with contextlib.suppress(OSError):
                os.unlink(path)
        else:
            found.append(lease)
    return found


def remove_all(folder: str) -> None:
    """Remove the directory of an image's leases, of which none holds, and nobody takes one."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if "." in name:
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def _name(lease: Lease) -> str:
    # each taker has one of its own: that of a container that was replaced gives back no other
    taker = f"{lease.taker.host}\0{lease.taker.pid}\0{lease.taker.started}"
    whose = f"{taker}\0{lease.root}\0{lease.id}".encode(errors="surrogateescape")
    return blake2s(whose, digest_size=12).hexdigest()
