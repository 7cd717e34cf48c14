"""One container, and the operations that callers ask for.

What runs meanwhile is in `supervisor.containers.tree`; `supervisor.containers.phases` answers
`create`, and ends containers.
"""

import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import trio

from scrun.core.errors import ContainerExists, ScrunError, StateError
from scrun.model.identity import myself
from scrun.model.record import undone
from scrun.model.states import Phase, killed, taken
from scrun.supervisor.containers.records import link, remove_record
from scrun.supervisor.containers.tree import ContainerTree
from scrun.supervisor.contracts.deleter import Deleter
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.threads import in_thread

_DELETING = 20.0


class Container(ContainerTree):
    """A container of this supervisor, from its `create` to the end of its job."""

    @property
    def deposits(self) -> list[Deposit]:
        """What keeps it and its programs of `exec` that another supervisor has begun."""
        return [self._deposit, *(self.takeover.deposits if self.takeover is not None else ())]

    def is_taken_over(self, socket: str) -> None:
        """Note that it is ours: its deposit has begun. `socket`: the name of ours."""
        assert self.takeover is not None
        with suppress(OSError):  # a full disk ends no container
            link(self.directory, socket)  # first: who reads that we live connects to us
        self._ledger.note(supervisor=myself())
        self.takeover.is_kept()

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
        await self.there.wait()
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
    def asks_who_deletes(self) -> bool:
        return self._engine.hooks_at_delete

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
                await in_thread(remove_record, self.directory, socket)
                self._removed = True
            await self._ledger.close()
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
            self.journal.write("error", str(error))
        return True

    def abandon(self) -> None:
        """Log what the supervisor leaves behind: it ends before the container is cleaned up."""
        left = undone(self._ledger.record)
        self.journal.write(
            "error", f"the supervisor ends before cleaning up {left}; `scrun delete` does the rest"
        )
