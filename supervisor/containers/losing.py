"""How a container ends whose job Slurm takes away."""

from typing import Any

from scrun.core.errors import EngineError
from scrun.model.states import Ending, Phase
from scrun.supervisor.containers.phases import Phases
from scrun.supervisor.contracts.engine import LetsEnd
from scrun.supervisor.core.nurseries import Tasks

_TOLD = ("cancelled", "preempted", "time-limit")
"""Why Slurm sends SIGTERM to what runs, and SIGKILL later."""


class Losing(Phases):
    """See the module."""

    def __init__(self, *args: Any) -> None:  # noqa: ANN401
        """See `Phases`."""
        super().__init__(*args)
        self._beside = Tasks(f"container {self.id}")
        self._is_lost = False

    def lose(self, ending: Ending) -> None:
        """End it, after the time that Slurm gives a program between SIGTERM and SIGKILL.

        The first reason counts, whatever the program's status is then.
        """
        runs = self.phase is Phase.RUNNING and self._ending is None
        if not runs or ending.reason not in _TOLD or not isinstance(self._job, LetsEnd):
            self.end(ending)
            return
        self._is_lost, self._ending = True, ending
        self._journal.write("info", ending.text)
        self._beside.begin(self._end_in_time)

    async def _end_in_time(self) -> None:
        assert self._ending is not None
        assert isinstance(self._job, LetsEnd)
        try:
            await self._job.let_end()
        except EngineError as error:
            self._journal.write("verbose", str(error))
        self.end(self._ending)

    def become(self, phase: Phase, *more: Any) -> bool:  # noqa: ANN401
        """See `Phases`; when it has ended by itself, nothing more can be done in its job."""
        if phase is Phase.STOPPING and self._is_lost:
            self._scope.cancel()
        return super().become(phase, *more)
