"""What another supervisor has left of a container, which has died."""

import signal
from collections.abc import Sequence
from functools import partial

import trio

from scrun.model.states import killed
from scrun.oci.config import Bundle
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.live_session import ANCHOR, Execs, LiveSession, tell
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.log.journal import Journal


class Takeover:
    """A container that is taken over: what it goes on with, and who waits for that.

    Attributes:
        found: What the other has left; its descriptors are owned from now on.
        bundle: The submitted bundle.
        has_anchor: Whether its engine watches its anchor, not its first process.
        joined: Set when others of its pod can join its job.
    """

    def __init__(
        self,
        found: Inheritance,
        bundle: Bundle,
        programs: Sequence[tuple[Inheritance, Deposit]],
        *,
        has_anchor: bool,
    ) -> None:
        """`programs`: those of `exec` that were left, and what keeps these; owned from now on."""
        self.found = found
        self.bundle = bundle
        self.has_anchor = has_anchor
        self.joined = trio.Event()
        self._programs = [*programs]

    @property
    def deposits(self) -> list[Deposit]:
        """What keeps its programs."""
        return [deposit for _, deposit in self._programs]

    @property
    def _names(self) -> list[str]:
        """What the shim of its job has to go on with: it, if it was made, and its programs."""
        programs = [found.container for found, _ in self._programs]
        return [self.found.container, *programs] * self.found.is_made

    def is_kept(self) -> None:
        """Note that it is ours: its deposit has begun. The others of its job wait for it."""
        if (job := self.found.job) is None:
            self.joined.set()
            return
        self.joined = job.together.line_up(self.found.container)
        for name in self._names:
            job.together.awaits(name)

    def begin_programs(self, execs: Execs, journal: Journal, job: Job) -> None:
        """Go on with the programs of `exec`."""
        while self._programs:
            found, deposit = self._programs.pop()
            pid, in_step = found.facts["pid"], bool(found.facts.get("in_step"))
            anchor, stdio = Anchor(found.take(ANCHOR)), Stdio([-1, -1, -1], terminal=False)
            session = LiveSession(pid, journal, anchor, stdio, deposit, in_step=in_step)
            execs.known.add(pid)
            execs.begin(session, partial(self._run_on, session, found, job))

    async def _run_on(self, session: LiveSession, found: Inheritance, job: Job) -> None:
        try:
            await session.run_on(job, found)
        finally:
            if self.found.job is not None:
                self.found.job.together.without(found.container)
            found.close()

    async def end(self, deposit: Deposit) -> None:
        """Let go of what nobody has taken over; nobody waits for it any more."""
        container = self.found.container
        if (job := self.found.job) is not None:
            job.together.joins(container)
            for name in self._names:
                job.together.without(name)
            is_last = job.together.leaves(container) and not job.is_of_pool
            if is_last and deposit.job is not None and job.fds:
                job.close()  # all were ended before they could take it over, so nobody will
                deposit.job.end()
        for found, its in self._programs:
            its.end()
            await tell(found, killed(signal.SIGKILL))
        self.found.close()
