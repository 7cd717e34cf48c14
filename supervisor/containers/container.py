"""One container: its lifecycle, and the operations that callers ask for."""

import signal
from collections.abc import Awaitable, Callable

import msgspec
import trio

from scrun.core.errors import ContainerExists, EngineError, ScrunError, StateError, described
from scrun.model.record import undone
from scrun.model.states import Phase, SignalAction, answer_to_signal, killed, taken
from scrun.supervisor.containers.lifecycle import Lifecycle
from scrun.supervisor.containers.records import remove_record
from scrun.supervisor.contracts.deleter import Deleter
from scrun.supervisor.contracts.running import RunningContainer
from scrun.supervisor.core.threads import in_thread

_DELETING = 20.0
_NOTICING = 5.0


class Container(Lifecycle):
    """A container of this supervisor.

    Attributes:
        is_being_killed: Whether somebody has sent SIGKILL, which need not have arrived yet.
    """

    is_being_killed = False

    @property
    def state(self) -> bytes:
        """The reply to `state`."""
        return self._ledger.state(self.status)

    async def run(self) -> None:
        """Run all of it with the mounts of its caller."""
        mounts = self._caller.mounts
        with mounts.seen():
            await super().run()
        if not self._ledger.record.is_left:
            mounts.close()

    async def start(self, *, again: bool = False) -> Callable[[], None]:
        """Let the container run as soon as it has its job and its bundle is staged.

        Args:
            again: Whether a supervisor was asked before, which has died before it answered. The
                same caller may have started it already then, which is not an error.

        Returns:
            A function to call after the caller got its answer. It begins the step: creating its
            process takes longer than all before, and the caller need not wait for that.

        Raises:
            StateError: It is not created, or was ended meanwhile.
            ScrunError: Its process exists already and could not be started.
        """
        if again and self.phase is not Phase.CREATED:
            await self._has_begun()
            return self._may_run.set
        if self.phase is not Phase.CREATED or self.ending:
            raise StateError(
                f"container {self.id} cannot be started: it is {self._described}, not created"
            )
        if self._running is None:
            self.become(Phase.WAITING)
            self._notices.started()
        else:
            self.become(Phase.STARTING)
        self._creation.start_requested.set()
        await self._has_begun()
        return self._may_run.set

    async def _has_begun(self) -> None:
        """Wait until a process that exists already is started."""
        if self._first_process is not None:
            await self._begun.wait()
            if self._not_started is not None:
                raise self._not_started

    @property
    def _described(self) -> str:
        """Its phase, for error messages."""
        if self.ending and self.phase is not Phase.STOPPED:
            return "being ended"
        return self.phase.status

    async def notice(self) -> None:
        """Wait until the end of its process is recorded: the engine may know of it already."""
        if self.process is not None and self.process.over:
            with trio.move_on_after(_NOTICING):
                await self.ended.wait()

    @property
    def can_be_killed(self) -> bool:
        """Whether SIGKILL can be sent by `begin_to_kill` now."""
        return answer_to_signal(self.phase, signal.SIGKILL) is SignalAction.DELIVER

    def is_to_be_killed(self) -> None:
        """Note that a successor has to call `begin_to_kill` if we die before we do."""
        self.is_being_killed = True
        self._deposit.note(killed=True)

    def begin_to_kill(self) -> None:
        """Send SIGKILL in the background; end the container if that fails."""

        async def kill() -> None:
            try:
                await self.kill(signal.SIGKILL)
            except (EngineError, OSError) as error:
                self._journal.write("error", described(error))
                self.end(killed(signal.SIGKILL, f"container {self.id} was killed"))

        self.begin(kill)

    async def running(self, purpose: str) -> RunningContainer:
        """Return what an operation on the running container needs.

        Raises:
            StateError: It does not run.
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
        """Record that its processes were paused or resumed."""
        self.paused = paused
        self._ledger.note(status=self.status)
        self._journal.write("verbose", "it is paused" if paused else "it is resumed")

    async def delete(self, deleter: Deleter | None = None, *, own: bool = False) -> None:
        """End the container if necessary, and wait until it is cleaned up; then call `remove`.

        Args:
            own: Whether that is its own `run`.

        Raises:
            StateError: That takes too long; it continues, and removes the record in the end.
        """
        self.delete_requested = True
        if deleter is not None and own:  # runc's `run` goes to the bundle
            deleter = msgspec.structs.replace(deleter, directory=self._create_request.bundle)
        self.deleter = deleter
        if self.phase is not Phase.STOPPED:  # else it is being cleaned up
            self.end(killed(signal.SIGKILL, f"container {self.id} was deleted"))
        with trio.move_on_after(_DELETING):
            await self.gone.wait()
        if self.alive:
            raise StateError(
                f"container {self.id} is still being cleaned up ({undone(self._ledger.record)}); "
                "it will be deleted as soon as that is done"
            )

    async def remove(self, socket: str, undo: Callable[[], Awaitable[object]]) -> None:
        """Remove the record of a container that is cleaned up.

        Args:
            undo: Called before, if something may be left outside of the record.

        Raises:
            ScrunError: Something is left; the record stays.
        """
        async with self._removing:
            # by now another container may have the id
            if not self._removed and self._ledger.is_there:
                if self._ledger.record.is_left:
                    with self._caller.mounts.seen():
                        await undo()
                await in_thread(remove_record, self._directory, socket)
                self._removed = True
            self._ledger.close()
            self._caller.mounts.close()

    def restore_record(self, socket: str) -> bool:
        """Make the record again; return whether the container still has its id."""
        try:
            self._ledger.make_again(socket)
        except ContainerExists:
            text = f"container {self.id}: its record was removed, and another one has its id now"
            self.end(taken("scrun-failure", text))
            return False
        except ScrunError as error:
            self._journal.write("error", str(error))
        return True

    def abandon(self) -> None:
        """Log what the supervisor leaves behind: it ends before the container is cleaned up."""
        left = undone(self._ledger.record)
        self._journal.write(
            "error", f"the supervisor ends before cleaning up {left}; `scrun delete` does the rest"
        )
