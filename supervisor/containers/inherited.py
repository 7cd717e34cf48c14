"""A container that another supervisor has left, which has died."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

import trio

from scrun.model.identity import myself
from scrun.model.states import Phase, killed
from scrun.oci.config import Bundle
from scrun.supervisor.containers.anchors import Anchor, NoAnchor
from scrun.supervisor.containers.caller import NoCaller
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.keeping import CAPTURED, STREAMS
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.containers.live_session import tell
from scrun.supervisor.containers.pods import Pods
from scrun.supervisor.containers.records import link
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import Engine
from scrun.supervisor.core.deposits import OWN, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.mounts import MountNamespace
from scrun.supervisor.core.threads import own_threads
from scrun.supervisor.plugins.choose_stager import Stagers


class InheritedContainer(Container):
    """See the module.

    Attributes:
        there: Set when it can be worked with, or has ended.
        joined: Set when others of its pod can join its job.
        deposits: Keep what it and its programs of `exec` need to outlive us.
    """

    def __init__(
        self,
        create_request: CreateRequest,
        bundle: Bundle,
        engine: Engine,
        stagers: Stagers,
        ledger: Ledger,
        pods: Pods,
        found: Inheritance,
        left: Sequence[tuple[Inheritance, Deposit]],
    ) -> None:
        """Go on where the other was; nothing runs yet.

        Args:
            create_request: The request.
            bundle: The submitted bundle, as it was.
            engine: Where it runs.
            stagers: Clean up what was staged.
            ledger: Its record.
            pods: The jobs of others.
            found: What the other has left; its descriptors are owned from now on.
            left: What it has left for programs of `exec`, and what keeps that; likewise.
        """
        fds = [found.fds.pop(name, -1) for name in STREAMS]
        stdio = Stdio(fds, terminal=found.facts["terminal"])
        self._has_anchor = f"{OWN}anchor" in found.fds
        anchor = Anchor(found.take(f"{OWN}anchor")) if self._has_anchor else NoAnchor()
        mounts = MountNamespace(found.fds.pop(f"{OWN}mounts", -1))
        caller = NoCaller(ledger.record.pid, found.fds.pop(f"{OWN}pid_file", None), mounts)
        super().__init__(create_request, engine, stagers, ledger, anchor, stdio, pods, caller)
        self._submitted = self._bundle = bundle
        self._found = found
        self._left = [*left]
        self.there = self.joined = trio.Event()
        self.deposits = [self._deposit, *(deposit for _, deposit in left)]
        self.phase = Phase[found.facts["phase"]]
        self.paused = ledger.record.status == "paused"
        self.queued.set()
        self.settled.set()

    def _take_captured_over(self) -> None:
        """Go on to capture its output, if the other did.

        Raises:
            OSError: A file cannot be opened.
        """
        found = self._found
        names = [name for name in found.fds if name.startswith(CAPTURED)]
        if names:
            captured = self._captured_output()
            left = {name.removeprefix(CAPTURED): found.take(name) for name in names}
            captured.take_over(left, terminal=found.facts["captured"])
            self._capture(captured)

    def is_kept(self, name: str) -> None:
        """Note that it is ours: its deposit has begun. The others of its job wait for it.

        Args:
            name: The name of this supervisor's socket.
        """
        with suppress(OSError):  # a full disk ends no container
            link(self._directory, name)  # first: who reads that we live connects to us
        self._ledger.note(supervisor=myself())
        os.close(self._found.take(f"{OWN}request"))
        if self._found.job is not None:
            self.joined = self._found.job.together.line_up(self.id)
            for name in self._names:
                self._found.job.together.awaits(name)

    @property
    def _names(self) -> list[str]:
        """What the shim of its job has to go on with: it, if it was made, and its programs."""
        return [self.id, *(found.container for found, _ in self._left)] * self._found.is_made

    async def run(self) -> None:
        """See `Lifecycle`."""
        own_threads()
        try:
            # if we died before that, the next one would begin with what we have begun with
            await self._deposit.be_safe()
            await super().run()
        finally:
            self.there.set()
            if (job := self._found.job) is not None:
                job.together.joins(self.id)
                for name in self._names:
                    job.together.without(name)
                if job.together.leaves(self.id) and self._deposit.job is not None and job.fds:
                    job.close()  # all were ended before they could take it over, so nobody will
                    self._deposit.job.end()
            for found, deposit in self._left:
                deposit.end()
                await tell(found, killed(signal.SIGKILL))
            self._found.close()
