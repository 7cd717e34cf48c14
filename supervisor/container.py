"""One container: its life, and what is asked of it meanwhile and afterwards."""

import signal
from collections.abc import Callable

import trio

from scrun.errors import EngineError, StateError, described
from scrun.states import Answer, Phase, answer_to_signal, killed
from supervisor.inside import Inside
from supervisor.life import Life
from supervisor.records import remove_record

_DELETING = 20.0


class Container(Life):
    """A container of this supervisor."""

    @property
    def state(self) -> bytes:
        """The answer to `state`."""
        return self._ledger.state(self.status)

    def start(self) -> Callable[[], None]:
        """Let the container run, as soon as its job is there and its bundle staged.

        Returns:
            What has to be called when the caller is answered. The step begins then: to make its
            process takes longer than everything before, and the caller need not wait for that.

        Raises:
            StateError: It is not created.
        """
        if self.phase is not Phase.CREATED or self.ending:
            status = "being ended" if self.ending else self.phase.status
            raise StateError(f"container {self.id} cannot be started: it is {status}, not created")
        if self._running is None:
            self._become(Phase.WAITING)
            self._notices.started()
        else:
            self._become(Phase.STARTING)
        self._asked_to_start.set()
        return self._may_run.set

    @property
    def can_be_killed(self) -> bool:
        """Whether `begin_to_kill` is what SIGKILL means to it now."""
        return answer_to_signal(self.phase, signal.SIGKILL) is Answer.DELIVER

    def begin_to_kill(self) -> None:
        """Send SIGKILL, and see to it that the container ends; whoever asks need not wait."""

        async def kill() -> None:
            try:
                await self.kill(signal.SIGKILL)
            except (EngineError, OSError) as error:
                self._journal.write("error", described(error))
                self.end(killed(signal.SIGKILL, f"container {self.id} was killed"))

        self.begin(kill)

    def inside(self, purpose: str) -> Inside:
        """Return what is needed to do something with the container while it runs.

        Raises:
            StateError: It does not.
        """
        if self.phase is Phase.WAITING:
            raise StateError(
                f"container {self.id}: {purpose} is not possible yet: {self._notices.reason}"
            )
        if self.phase not in (Phase.STARTING, Phase.RUNNING) or self._running is None:
            raise StateError(
                f"container {self.id}: {purpose} is not possible: it is {self.phase.status}, not "
                "running"
            )
        return self._running

    def set_paused(self, paused: bool) -> None:
        """Take notice that its processes were stopped, or go on."""
        self.paused = paused
        self._ledger.note(status=self.status)
        self._journal.write("verbose", "it is paused" if paused else "it goes on")

    async def delete(self) -> None:
        """End the container if it is not, and wait until it is gone; then `remove` is left to do.

        Raises:
            StateError: Undoing it takes too long; it goes on, and the record goes with it.
        """
        self.doomed = True
        self.end(killed(signal.SIGKILL, f"container {self.id} was deleted"))
        with trio.move_on_after(_DELETING):
            await self.gone.wait()
        if self.alive:
            moved = self._ledger.record.moved
            job = f"job {self._ledger.record.job_id}".rstrip()
            what = f"{job} is not given back yet, Slurm does not answer"
            if moved is not None:
                what = f"stage_out of {moved.script} is not done yet"
            raise StateError(
                f"container {self.id}: {what}; it and the record will go as soon as that is "
                "possible"
            )

    async def remove(self, socket: str) -> None:
        """Remove the record of a container that is gone; `socket` is the supervisor's name."""
        async with self._removing:
            # by now the id may be somebody else's
            if not self._removed and self._ledger.is_there:
                await trio.to_thread.run_sync(remove_record, self._directory, socket)
                self._removed = True
