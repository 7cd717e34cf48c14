"""Leases of a store: an image that a container uses is not removed.

A lease is a file, `leases/KEY/HOLDER`. Nobody has to give it back: it is void as soon as the
container's record is gone and the process that took it has ended. What happens on another machine
cannot be seen from here, so a lease from there holds for a month.
"""

import contextlib
import os
import time
from _blake2 import blake2s

import msgspec

from scrun.model.identity import is_dead, myself
from scrun.model.record import ProcessIdentity

_MONTH = 30 * 86400.0
_LARGEST = 65536


class Lease(msgspec.Struct, frozen=True):
    """Who uses an image.

    Attributes:
        id: The container.
        root: The root directory of its record.
        taker: The process that took the lease, before there was a record.
    """

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
    """Write a lease.

    Args:
        folder: The directory of the image's leases.
        lease: The lease.

    Raises:
        OSError: It cannot be written.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, _name(lease))
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(msgspec.json.encode(lease))
    os.rename(temporary, path)


def give_back(folder: str, lease: Lease) -> None:
    """Remove a lease, if it is there."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, _name(lease)))


def those_that_hold(folder: str) -> list[Lease]:
    """Return the leases of an image that hold; removes those that do not.

    One that cannot be read holds: nobody knows whose it is.
    """
    found = []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    for name in sorted(names):
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                lease = msgspec.json.decode(file.read(_LARGEST), type=Lease)
            old = time.time() - os.stat(path).st_mtime > _MONTH
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError):
            found.append(Lease(name, "", ProcessIdentity(0)))
            continue
        elsewhere = lease.taker.host != myself().host
        if (elsewhere and old) or not lease.holds():
            with contextlib.suppress(OSError):
                os.unlink(path)
        else:
            found.append(lease)
    return found


def _name(lease: Lease) -> str:
    # each taker has one of its own: that of a container that was replaced gives back no other
    taker = f"{lease.taker.host}\0{lease.taker.pid}\0{lease.taker.started}"
    whose = f"{taker}\0{lease.root}\0{lease.id}".encode(errors="surrogateescape")
    return blake2s(whose, digest_size=12).hexdigest()
