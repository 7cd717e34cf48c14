"""The interface of allocations that several containers use, at once or one after the other.

The supervisor holds such an allocation in a task of its own (`supervisor.containers.held_job`).
"""

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol

import msgspec
import trio

from scrun.core.typed import decode_as
from scrun.model.states import Ending
from scrun.supervisor.core.deposits import JOB
from scrun.supervisor.core.inheritance import Inheritance


class Loan:
    """A job that is lent to another supervisor.

    Attributes:
        facts: What that needs to hold it, for JSON: its id (`job`), its variables (`environment`)
            and others of the engine.
        fds: The descriptors that hold it, by name; they stay the engine's.
        clean: Whether the next container may have it; to be set before the block is left.
    """

    def __init__(self, facts: Mapping[str, Any], fds: Mapping[str, int]) -> None:
        self.facts = facts
        self.fds = fds
        self.clean = False


Lend = Callable[[bytes, Callable[[Ending], None]], AbstractAsyncContextManager[Loan | None]]
"""Lends a job that waits and suits a request (`JobPlan.needs`); None if there is none.
The second argument is called when the job is taken away."""

Borrow = Callable[[bytes], Awaitable[Inheritance | None]]
"""Returns what holds a job that another supervisor lends us, as if that had left it, with the
connection to it (`LOAN`); None if there is none."""


class WaitingJob(msgspec.Struct, frozen=True):
    """A job that waits for its next container.

    Attributes:
        nodes: Its nodes, as the engine writes them.
        seconds: How long it waits at most, from now on.
    """

    job_id: str
    nodes: str
    seconds: float
    options: Sequence[str]


class Room(msgspec.Struct, frozen=True):
    """What a container takes of a node, or what a node has.

    Attributes:
        memory: In MiB; `inf` if nobody counts it.
    """

    processors: int
    memory: float = 0
    gpus: int = 0

    def __str__(self) -> str:
        parts = [f"{self.processors} processors"]
        parts += [f"{self.memory:g} MiB of memory"] if self.memory else []
        parts += [f"{self.gpus} GPUs"] if self.gpus else []
        return " and ".join(parts)

    def __add__(self, other: "Room") -> "Room":
        return Room(
            self.processors + other.processors, self.memory + other.memory, self.gpus + other.gpus
        )

    def __sub__(self, other: "Room") -> "Room":
        return Room(
            self.processors - other.processors, self.memory - other.memory, self.gpus - other.gpus
        )

    def fits(self, node: "Room") -> bool:
        """Tell whether a node has as much."""
        return (
            self.processors <= node.processors
            and self.memory <= node.memory
            and self.gpus <= node.gpus
        )


class Taken(msgspec.Struct, frozen=True):
    """What a container has taken of a node, which the others of its pod share.

    Attributes:
        gpus: Which GPUs, as Slurm's variables name them on the node.
    """

    container: str
    room: Room
    gpus: tuple[str, ...] = ()


class Seat(msgspec.Struct, frozen=True):
    """A container's wish to run in a pool.

    Attributes:
        is_asked: Whether the container's own requests name it; else it is only a default.
        room: What it takes of a node; None: no pool can meet its requests.
        why_not: Why, then.
        seconds: For how long its node has to be there at least.
    """

    pool: str
    is_asked: bool
    room: Room | None
    why_not: str = ""
    seconds: float = 0


class HeldAllocation(Protocol):
    """An allocation that is held, whichever containers are in it."""

    @property
    def job_id(self) -> str:
        """The job's id, as the engine writes it."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The job's variables (SLURM_*)."""

    @property
    def is_clean(self) -> bool:
        """Whether the job is there and runs, and its containers have left nothing in it."""

    async def serves(self, needs: bytes) -> bool:
        """Tell whether a container with such needs (`JobPlan.needs`) may have it next."""

    def waiting(self, seconds: float) -> WaitingJob: ...

    def for_another(self) -> Loan:
        """Return what another supervisor needs to hold it, too."""


LOAN = f"{JOB}loan"
"""The name of the connection among what holds the job."""

CLEAN = b"+"
"""Says that the next container may have the job."""

_ANSWER = 5.0
_LONGEST = 1 << 16


class Lender:
    """The connection to the supervisor that has lent a job.

    Attributes:
        sock: The connection; a deposit may keep it.
        gone: Set when the lender has died: the job is ours alone.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Take over the connection."""
        sock.setblocking(False)
        self.sock = sock
        self.gone = trio.Event()

    async def watch(self, on_lost: Callable[[Ending], None]) -> None:
        """Report the loss of the job; or note the end of the lender."""
        said = b""
        while not said.endswith(b"\n"):
            await trio.lowlevel.wait_readable(self.sock)
            try:
                part = self.sock.recv(_LONGEST)
            except BlockingIOError:
                continue
            except OSError:
                part = b""
            if not part:
                self.gone.set()
                return
            said += part
        on_lost(decode_as(said, Ending))

    async def give_back(self) -> None:
        """Let the next container have the job; returns when the lender has it again."""
        with suppress(OSError), trio.move_on_after(_ANSWER, shield=True):
            self.sock.send(CLEAN)  # a byte: this does not block
            await trio.lowlevel.wait_readable(self.sock)

    def close(self) -> None:
        """Close it; without `give_back` the lender releases the job."""
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()


class PoolAllocation(Protocol):
    """A job of one node that is held for the containers of a pool, with its shim."""

    @property
    def job_id(self) -> str:
        """The job's id, as the engine writes it."""

    @property
    def node(self) -> str:
        """The node's name."""

    @property
    def room(self) -> Room:
        """What all its containers together can have."""

    @property
    def gpus(self) -> Sequence[str]:
        """Its GPUs, as Slurm's variables name them there."""

    @property
    def is_open(self) -> bool:
        """Whether a container may come now: the job is there, and not suspended."""

    def lasts(self, seconds: float) -> bool:
        """Tell whether the job's time limit leaves so much time from now on."""

    def seat(self, taken: Taken) -> HeldAllocation:
        """Return it as one container has it, beside the others."""
