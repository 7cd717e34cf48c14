"""One container: its life, and what is asked of it meanwhile and afterwards."""

import signal
from collections.abc import Awaitable, Callable

import trio

from scrun.core.errors import ContainerExists, EngineError, ScrunError, StateError, described
from scrun.model.record import undone
from scrun.model.states import Phase, SignalAction, answer_to_signal, killed, taken
from scrun.supervisor.containers.lifecycle import Lifecycle
from scrun.supervisor.containers.records import remove_record
from scrun.supervisor.contracts.running import RunningContainer
from scrun.supervisor.core.threads import in_thread

_DELETING = 20.0
_NOTICING = 5.0


class Container(Lifecycle):
    """A container of this supervisor."""

    @property
    def state(self) -> bytes:
        """The answer to `state`."""
        return self._ledger.state(self.status)

    async def start(self) -> Callable[[], None]:
        """Let the container run, as soon as its job is there and its bundle staged.

        Returns:
            What has to be called when the caller is answered. The step begins then: to make its
            process takes longer than everything before, and the caller need not wait for that.

        Raises:
            StateError: It is not created, or was ended meanwhile.
            ScrunError: The process that there is already could not be started.
        """
        if self.phase is not Phase.CREATED or self.ending:
            raise StateError(
                f"container {self.id} cannot be started: it is {self._described}, not created"
            )
        if self._running is None:
            self.become(Phase.WAITING)
            self._notices.started()
        else:
            self.become(Phase.STARTING)
        self._creation.asked_to_start.set()
        if self._made is not None:
            await self._begun.wait()
            if self._not_started is not None:
                raise self._not_started
        return self._may_run.set

    @property
    def _described(self) -> str:
        """Where it is in its life, for a refusal."""
        if self.ending and self.phase is not Phase.STOPPED:
            return "being ended"
        return self.phase.status

    async def notice(self) -> None:
        """Wait until an end is written down that the engine may know of already."""
        if self.process is not None and self.process.over:
            with trio.move_on_after(_NOTICING):
                await self.ended.wait()

    @property
    def can_be_killed(self) -> bool:
        """Whether `begin_to_kill` is what SIGKILL means to it now."""
        return answer_to_signal(self.phase, signal.SIGKILL) is SignalAction.DELIVER

    def begin_to_kill(self) -> None:
        """Send SIGKILL, and see to it that the container ends; whoever asks need not wait."""

        async def kill() -> None:
            try:
                await self.kill(signal.SIGKILL)
            except (EngineError, OSError) as error:
                self._journal.write("error", described(error))
                self.end(killed(signal.SIGKILL, f"container {self.id} was killed"))

        self.begin(kill)

    async def running(self, purpose: str) -> RunningContainer:
        """Return what is needed to do something with the container while it runs.

        Raises:
            StateError: It does not.
        """
        await self.notice()
        if self.phase is Phase.WAITING:
            raise StateError(
                f"container {self.id}: {purpose} is not possible yet: {self._notices.reason}"
            )
        if self.phase not in (Phase.STARTING, Phase.RUNNING) or self._running is None:
            raise StateError(
                f"container {self.id}: {purpose} is not possible: it is {self._described}, not "
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
        self.delete_requested = True
        self.end(killed(signal.SIGKILL, f"container {self.id} was deleted"))
        with trio.move_on_after(_DELETING):
            await self.gone.wait()
        if self.alive:
            raise StateError(
                f"container {self.id} is still being undone ({undone(self._ledger.record)}); it "
                "and the record will go as soon as that is done"
            )

    async def remove(self, socket: str, undo: Callable[[], Awaitable[object]]) -> None:
        """Remove the record of a container that is gone.

        Args:
            socket: The supervisor's name.
            undo: Undoes before what may be there still outside of the record.

        Raises:
            ScrunError: Something is; then the record stays.
        """
        async with self._removing:
            # by now the id may be somebody else's
            if not self._removed and self._ledger.is_there:
                if self._ledger.record.is_left:
                    await undo()
                await in_thread(remove_record, self._directory, socket)
                self._removed = True
            self._ledger.close()

    def come_back(self, socket: str) -> bool:
        """Make the record again; tell whether the container has its id still."""
        try:
            self._ledger.make_again(socket)
        except ContainerExists:
            text = f"container {self.id}: its record was removed, and its id is another one's now"
            self.end(taken("scrun-failure", text))
            return False
        except ScrunError as error:
            self._journal.write("error", str(error))
        return True

    def abandon(self) -> None:
        """Say what is left to others: the supervisor goes before it is undone."""
        left = undone(self._ledger.record)
        self._journal.write(
            "error", f"the supervisor ends before {left} is undone; `scrun delete` goes on with it"
        )
