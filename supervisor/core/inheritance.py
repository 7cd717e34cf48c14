"""What a supervisor has left when it died, and its keeper holds (`supervisor.core.deposits`)."""

import errno
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
import trio

from scrun.core.errors import StateError
from scrun.core.rights import receive_fds, send_fds
from scrun.core.supervisors import is_newer
from scrun.core.typed import decode_as
from scrun.core.version import VERSION
from scrun.supervisor.core.descriptors import close
from scrun.supervisor.core.limits import raise_open_files
from scrun.supervisor.keeper.main import ALL, LONGEST, NEXT


class KeeperLine:
    """A socket, and a pipe that wakes the keeper. The end of both calls a successor."""

    def __init__(self, fds: Sequence[int]) -> None:
        """Duplicate the socket, and the pipe if the keeper may sleep; raises OSError."""
        self.sock = socket.socket(fileno=os.dup(fds[0]))
        try:
            self._wake = [os.dup(fd) for fd in fds[1:2]]
        except BaseException:
            self.sock.close()
            raise
        for fd in self._wake:
            os.set_blocking(fd, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.sock.close()
        while self._wake:
            os.close(self._wake.pop())

    @property
    def fds(self) -> list[int]:
        return [self.sock.fileno(), *self._wake]

    def send(self, message: bytes, fds: Sequence[int] = (), flags: int = 0) -> None:
        """Send the keeper a message.

        Raises OSError if it is too long, or there is no room for it; or the keeper is gone.
        """
        send_fds(self.sock, message, [*fds], flags)
        for fd in self._wake:
            with suppress(BlockingIOError):  # it has enough to be woken by
                os.write(fd, b"\n")


MADE = "staged"
"""The fact that says that a container was made: its staged bundle."""

OF = "of"
"""The fact that names a container's job."""

POOL = "pool"
"""The fact that names the pool that has a job."""

OF_JOB = "/"
"""Is in the name of a job's; no container's id has it."""

IN = "in"
"""The fact that names the container of a program of `exec`."""

_PATIENCE = 10.0


class DepositContent(msgspec.Struct):
    """The facts beside descriptors, and the version of the scrun that has left them."""

    facts: dict[str, Any]
    version: str = VERSION


class AdoptionGroup:
    """The containers of one job, which are adopted together.

    Attributes:
        complete: Set when all that the job's shim has to go on with are there, or never will be.
    """

    def __init__(self) -> None:
        self.complete = trio.Event()
        self._awaited: set[str] = set()
        self._turns: dict[str, trio.Event] = {}
        self._ended: set[str] = set()

    def awaits(self, name: str) -> None:
        """Let the shim wait for one more, a container or a program in one."""
        self._awaited.add(name)

    def is_whole(self) -> None:
        """Note that all have been named that the shim has to wait for."""
        if not self._awaited:
            self.complete.set()

    def without(self, name: str) -> None:
        """Wait no more for one: it has arrived, or never will."""
        self._awaited.discard(name)
        self.is_whole()

    def line_up(self, container: str) -> trio.Event:
        """Let one more join the job, after the others; the event is set when it has joined."""
        return self._turns.setdefault(container, trio.Event())

    async def turn_of(self, container: str) -> None:
        """Wait until all before a container have joined the job, or never will."""
        for other, joined in [*self._turns.items()]:
            if other == container:
                return
            await joined.wait()

    def joins(self, container: str) -> None:
        """Let the next one join: this one has, or never will."""
        self._turns[container].set()

    def leaves(self, container: str) -> bool:
        """Note that a container has ended; return whether it was the last one."""
        self._ended.add(container)
        return len(self._ended) == len(self._turns)


class Inheritance(msgspec.Struct):
    """What a supervisor has left for a container, or for a job.

    Attributes:
        container: Its id; the name of a job's.
        fds: The descriptors, by their names; they belong to whoever asks.
        job: What it has left for the container's job, the same for all containers of that.
        programs: What it has left for the programs of `exec` in the container.
        together: Of a job: its containers, and their programs.
    """

    container: str
    facts: dict[str, Any]
    fds: dict[str, int]
    job: "Inheritance | None" = None
    programs: "list[Inheritance]" = msgspec.field(default_factory=list)
    together: AdoptionGroup = msgspec.field(default_factory=AdoptionGroup)

    @property
    def is_of_job(self) -> bool:
        """Whether it was left for a job, not for a container."""
        return OF_JOB in self.container

    @property
    def is_of_pool(self) -> bool:
        """Whether it was left for a job of a pool, which may have no container."""
        return self.is_of_job and POOL in self.facts

    @property
    def is_made(self) -> bool:
        return MADE in self.facts

    @property
    def is_first(self) -> bool:
        """Whether the container has asked for its job."""
        return self.job is not None and self.job.container.startswith(self.container + OF_JOB)

    def take(self, name: str) -> int:
        """Return a descriptor, which belongs to the caller from now on."""
        return self.fds.pop(name)

    def close(self) -> None:
        """Close the descriptors that nobody has taken."""
        while self.fds:
            os.close(self.fds.popitem()[1])
        while self.programs:
            self.programs.pop().close()


def find(line: KeeperLine) -> list[Inheritance]:
    """Ask a keeper for all that it holds further; StateError if that was a newer scrun's."""
    found: dict[str, Inheritance] = {}
    versions: set[str] = set()
    try:
        raise_open_files()
        line.sock.settimeout(_PATIENCE)
        line.send(ALL)
        while (left := _receive(line.sock, versions)) is not None:
            found[left.container] = left
            line.send(NEXT)
        for version in versions:
            if is_newer(version):
                raise StateError(
                    f"scrun {VERSION} cannot take over from a supervisor of scrun {version}: "
                    "install the newer one again"
                )
    except BaseException:
        for left in found.values():
            left.close()
        raise
    for left in found.values():
        left.job = found.get(left.facts.get(OF, ""))
    return _without_programs(found)


def _receive(sock: socket.socket, versions: set[str]) -> Inheritance | None:
    """Receive one deposit; None if that was all. OSError: no descriptors, or no keeper."""
    message, fds, whole = receive_fds(sock, LONGEST)
    try:
        if not whole:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not message:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        name, text, names = message.split(b"\0")
        if not name:
            return None
        content = decode_as(text, DepositContent)
        versions.add(content.version)
        by_name = dict(zip(names.decode().split(), fds, strict=True))
        return Inheritance(name.decode(), content.facts, by_name)
    except BaseException:
        close_all(fds)
        raise


def _without_programs(found: Mapping[str, Inheritance]) -> list[Inheritance]:
    """Give the programs of `exec` to their containers; a program has no life without one."""
    whole = []
    for left in found.values():
        if IN not in left.facts:
            whole.append(left)
        elif (container := found.get(left.facts[IN])) is not None:
            container.programs.append(left)
        else:
            left.close()
    return whole


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        close(fd)
