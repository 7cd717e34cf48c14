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

from scrun.core.typed import decode_as
from scrun.core.whole_files import write_whole
from scrun.model.identity import is_dead, myself
from scrun.model.record import ProcessIdentity

_MONTH = 30 * 86400.0
_LARGEST = 65536


class Lease(msgspec.Struct, frozen=True):
    """Who uses an image.

    Attributes:
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

    Raises:
        OSError: It cannot be written.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_whole(os.path.join(folder, _name(lease)), msgspec.json.encode(lease))


def give_back(folder: str, lease: Lease) -> None:
    """Remove a lease, if it is there."""
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
