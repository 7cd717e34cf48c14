"""The interface of a container's first process, where that is created before it is started."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from scrun.model.states import Ending

Call = Callable[[Sequence[str]], Awaitable[int]]
"""Makes the waiting `create` run a command; returns the exit status, or the negative number of the
signal that killed it."""


class FirstProcess(Protocol):
    """A container's first process.

    Attributes:
        is_started: Whether another supervisor has started its program.
    """

    pid: int
    is_started: bool

    @property
    def ending(self) -> Ending | None:
        """How it ended; -1 stands for a status that only its parent knows."""

    @property
    def over(self) -> bool:
        """Whether it has ended, even if we have not noticed: the engine may know first."""

    async def start(self) -> None:
        """Start the container's program; raises EngineError with the runtime's reason."""

    async def ended(self) -> Ending: ...
