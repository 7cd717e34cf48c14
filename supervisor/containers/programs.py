"""The programs of `exec` in a container."""

from collections.abc import Awaitable, Callable

from scrun.supervisor.containers.live_session import LiveSession
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.nurseries import Tasks, unwrapped


class Execs:
    """See the module.

    Attributes:
        when_ended: Called when one has ended.
    """

    def __init__(self, tasks: Tasks, deposit: Deposit) -> None:
        """Begin without any.

        Args:
            tasks: Those beside the container.
            deposit: The container's.
        """
        self.when_ended: Callable[[], None] = _nothing
        self._tasks = tasks
        self._deposit = deposit
        self._live: set[LiveSession] = set()
        self._known: set[int] = set()

    @property
    def would_end(self) -> bool:
        """Whether one of them would end with us."""
        return any(not session.deposit.is_kept for session in self._live)

    def deposit(self) -> Deposit:
        """Return a deposit for one more."""
        return self._deposit.of_program()

    def was_left(self, pid: int) -> None:
        """Note the pid of the anchor of one that another supervisor has begun."""
        self._known.add(pid)

    def runs(self, pid: int) -> bool:
        """Tell whether one that another supervisor was asked for has come to run."""
        return pid in self._known

    def begin(self, session: LiveSession, run: Callable[[], Awaitable[None]]) -> bool:
        """Run one, which ends with the container; return whether that was possible."""

        async def live() -> None:
            self._live.add(session)
            try:
                await run()
            finally:
                self._live.remove(session)
                self.when_ended()

        return self._tasks.begin(live)

    async def let_end(self) -> None:
        """Wait for the ends of those that make use of the time that Slurm gives them.

        Raises:
            EngineError: The ends are not known.
        """
        async with unwrapped() as nursery:
            for session in self._live:
                nursery.start_soon(session.let_end)


def _nothing() -> None:
    """Do nothing."""
