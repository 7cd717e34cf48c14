"""The interface of jobs that can create a container without starting its program; optional."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from scrun.model.states import Ending
from scrun.supervisor.contracts.engine import Step

Call = Callable[[Sequence[str]], Awaitable[int]]
"""Makes the waiting `create` run a command; returns the exit status, or the negative number of the
signal that killed it."""


class FirstProcess(Protocol):
    """A container's first process.

    Attributes:
        pid: Its process id.
    """

    pid: int

    @property
    def ending(self) -> Ending | None:
        """How it ended; -1 stands for a status that only its parent knows."""
        ...

    @property
    def over(self) -> bool:
        """Whether it has ended, even if we have not noticed: the engine may know first."""
        ...

    async def start(self) -> None:
        """Start the container's program.

        Raises:
            EngineError: The runtime failed; with its reason.
        """
        ...

    async def ended(self) -> Ending:
        """Wait for its end."""
        ...


@runtime_checkable
class SaysLaunch(Protocol):
    """A job that knows what launches its containers.

    Attributes:
        launch: `shim` or `container`, as in the setting.
    """

    launch: str


@runtime_checkable
class CreatesFirst(Protocol):
    """A job that can create a container without starting its program.

    Attributes:
        below_engine: Whether an engine's monitor can be the parent of its first process.
    """

    below_engine: bool

    def created(
        self, step: Step, call: Call | None = None, console: str | None = None
    ) -> AbstractAsyncContextManager[FirstProcess]:
        """Create the container, instead of `run`. It is ended when the block is left.

        Args:
            step: The container; its descriptors are those of `call`, if there is one.
            call: Runs the runtime below the engine's monitor, which becomes the parent of the
                container's first process; None: that will be our child.
            console: The engine's socket for the terminal, if it has one.

        Raises:
            EngineError: The runtime failed; with its reason.
        """
        ...
