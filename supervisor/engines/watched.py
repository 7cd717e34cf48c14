"""The first process of a container, if it is not ours; or those of its tasks."""

from collections.abc import Awaitable, Callable

import trio

from scrun.model.states import Ending, taken
from scrun.supervisor.core.nurseries import until


class WatchedProcess:
    """See `supervisor.contracts.first_process.FirstProcess`.

    Attributes:
        begun: Set when it is started, or has ended.
        is_started: Whether another supervisor has started it.
    """

    pid = 0  # nobody here needs it
    is_started = False

    def __init__(
        self,
        begin: Callable[[], Awaitable[None]],
        how_it_ends: Callable[["WatchedProcess"], Awaitable[Ending]],
    ) -> None:
        self.begun = trio.Event()
        self._begin = begin
        self._how_it_ends = how_it_ends
        self._ending: Ending | None = None
        self._ended = trio.Event()
        self._starting = False

    @property
    def ending(self) -> Ending | None:
        return self._ending

    @property
    def over(self) -> bool:
        return self._ending is not None

    async def start(self) -> None:
        self._starting = True
        try:
            async with until(self._ended.wait):
                await self._begin()
        finally:
            self._starting = False
            self.begun.set()

    async def ended(self) -> Ending:
        await self._ended.wait()
        return self._ending or taken(
            "scrun-failure", "the process that created the container was ended"
        )

    async def started(self) -> None:
        """Wait for a call of `start` that is under way: a program may end before its reply."""
        if self._starting:
            await self.begun.wait()

    async def runs(self) -> bool:
        """Tell whether it is started, and has not ended; waits as `started`."""
        await self.started()
        return self.begun.is_set() and not self.over

    async def watch(self) -> None:
        try:
            self._ending = await self._how_it_ends(self)
        finally:
            self._ended.set()
            self.begun.set()
