"""Says on disk which jobs a pool holds: no record of a container has them.

A supervisor that looks for jobs of dead ones leaves those alone that somebody claims. A claim is a
file in the root directory with the job's id, locked by the supervisor or by its keeper. One that
is not locked is removed like the locks of dead supervisors, whose names are alike. The file's name
says whose it was first, and of which pool: so a successor knows which pools are to be adopted yet.
"""

import fcntl
import os
import re
from collections.abc import Container
from contextlib import suppress

import msgspec

from scrun.model.adoption import is_locked
from scrun.model.identity import is_dead, myself

_BEGIN, _END = "@pool-", ".lock"
_NAME = re.compile(r"@pool-[0-9a-f]+-([0-9]{1,9})-([0-9]{1,20})-(.+)\.lock", re.ASCII)


class Claim:
    """A claim on one job.

    Attributes:
        fd: Holds it; it is owned.
        name: The file's name.
    """

    def __init__(self, root: str, pool: str, name: str = "", fd: int = -1) -> None:
        """Make one, or go on with that of another supervisor.

        Raises:
            OSError: It cannot be made.
        """
        owner = f"{myself().pid}-{myself().started}"
        self.name = name or f"{_BEGIN}{os.urandom(8).hex()}-{owner}-{pool}{_END}"
        self._path = os.path.join(root, self.name)
        if fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._path, flags, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.fd = fd

    def note(self, job_id: str) -> None:
        with suppress(OSError):  # a full disk
            os.pwrite(self.fd, job_id.encode(), 0)

    def end(self) -> None:
        with suppress(OSError):
            os.unlink(self._path)
        os.close(self.fd)


def is_claimed(root: str, job_id: str) -> bool:
    """Tell whether a pool holds a job, or is about to be adopted with it."""
    for name in os.listdir(root):
        if name.startswith(_BEGIN) and name.endswith(_END):
            path = os.path.join(root, name)
            with suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    is_its = os.pread(fd, 64, 0) == job_id.encode()
                finally:
                    os.close(fd)
                if is_its and is_locked(path):
                    return True
    return False


def is_on_its_way(root: str, pool: str, ours: Container[str]) -> bool:
    """Tell whether a pool is about to be adopted: somebody keeps claims of a dead supervisor.

    Args:
        ours: Names of claims that are ours already.
    """
    for name in os.listdir(root):
        if (found := _NAME.fullmatch(name)) and found[3] == pool and name not in ours:
            owner = msgspec.structs.replace(myself(), pid=int(found[1]), started=int(found[2]))
            if is_dead(owner) and is_locked(os.path.join(root, name)):
                return True
    return False
