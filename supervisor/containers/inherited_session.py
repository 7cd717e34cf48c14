"""A program of `exec` that another supervisor has begun, which has died."""

from functools import partial

import trio

from scrun.model.states import Ending
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.live_session import ANCHOR, LiveSession
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.adoption import AdoptedJob
from scrun.supervisor.contracts.engine import Session
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.log.journal import Journal


class InheritedSession(LiveSession):
    """See the module."""

    def __init__(self, found: Inheritance, journal: Journal, deposit: Deposit) -> None:
        """Take it over.

        Args:
            found: What the other has left; its descriptors are owned from now on.
            journal: The container's.
            deposit: Keeps it further; owned from now on.
        """
        anchor, stdio = Anchor(found.take(ANCHOR)), Stdio([-1, -1, -1], terminal=False)
        in_step = bool(found.facts.get("in_step"))
        super().__init__(found.facts["pid"], journal, anchor, stdio, deposit, in_step=in_step)
        self._found = found

    async def run_on(self, job: AdoptedJob) -> None:
        """Run it to its end; see `run`."""
        self._runs = True
        begin = partial(job.resumed_session, self._found, self.deposit, self.settled.set)
        await self._run(begin, self._forward_later)

    async def _forward_later(self, session: Session, nursery: trio.Nursery) -> None:
        """Forward signals when it can get them; some may have come while there was nobody."""
        await self.settled.wait()
        await self._forward_signals(session, nursery)


async def tell(found: Inheritance, ending: Ending) -> None:
    """Tell the anchor of a program that a dead supervisor has left how that has ended."""
    anchor = Anchor(found.take(ANCHOR))
    anchor.end(ending.status)
    with trio.CancelScope(shield=True):
        await anchor.close()
    found.close()
