"""A shim whose supervisor has died, and which goes on with this one."""

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import msgspec
import trio

from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.beginning import ALONE, LONGEST_ALONE
from scrun.supervisor.nodes.connection import BEGINS_WITH, Awaited, Shim, carried
from scrun.supervisor.nodes.dialing import Listener, addresses
from scrun.supervisor.nodes.link import SEALING, Sealing, ShimLink, direct_link
from scrun.supervisor.nodes.messages import (
    STREAMS,
    Ended,
    Event,
    Forged,
    Hello,
    ResumeReply,
    ShimError,
    decoded,
)
from scrun.supervisor.wire.frames import CALL, EVENT, PROTOCOL, RANDOM, SEALED

_DIAL_PATIENCE = 2.0


class ResumedShim(Shim):
    """A shim that goes on with this supervisor, after the death of its first one."""

    def __init__(self, control: ShimLink, nursery: trio.Nursery, journal: Journal) -> None:
        super().__init__(control, nursery, journal)
        self._token = ""
        self._resumed = Awaited()
        self._started: set[str] = set()
        self._times = 0

    def name(self, kind: str) -> str:
        self._last_target += 1
        return f"{kind}-{self._times}.{self._last_target}"

    async def resume(
        self,
        hello: Hello,
        targets: Mapping[str, str],
        written: Mapping[int, int],
        ports: str | None,
        alone: float = ALONE,
        sealing: Sealing = SEALING,
    ) -> None:
        """Let it connect to us, and send the bytes that were not written.

        Args:
            targets: Its containers and execs, and the container of each.
            written: How many bytes of each of their streams were written.
            sealing: See `beginning.Direct`; a shim of an older version has no seals.

        Raises:
            ShimError: It cannot connect to us, or is of a newer version.
            ShimLost: It has gone.
            NotReached: No port is free.
            OSError: Sockets cannot be made.
        """
        if hello.protocol > PROTOCOL:
            raise ShimError(f"it speaks protocol {hello.protocol}, and we know {PROTOCOL}")
        is_new = hello.protocol >= SEALED
        seals = sealing if is_new else None
        self._hello.set(hello)
        self._token, self._resumed = os.urandom(16).hex(), Awaited()
        for target, container in targets.items():
            self._targets[target] = Awaited()
            self._container_of[target] = container
        secret = os.urandom(RANDOM)
        async with (
            Listener(ports, secret, self._journal, knocks=is_new).listening() as listener,
            unwrapped() as nursery,
        ):

            @nursery.start_soon
            async def connect() -> None:
                link = direct_link(await listener.connected(), seals)
                if hello.gmac:
                    link.use_gmac()
                link.seal()
                self.table.use(link)
                self._nursery.start_soon(self._run_direct, link)

            call = {
                "call": 0,
                "verb": "resume",
                "token": self._token,
                "addresses": await addresses(hello.environment, listener.port),
                "secret": secret.hex(),
                "patience": _DIAL_PATIENCE,
                "alone": min(alone, LONGEST_ALONE),
                "protocol": PROTOCOL,
                "seal_streams": sealing.streams,
                "quiet": sealing.quiet,
                "gmac": hello.gmac and sealing.gmac,
                "targets": [*targets],
                "written": {str(number): count for number, count in written.items()},
            }
            self._control.put(CALL, 0, msgspec.json.encode(call))
            resumed: ResumeReply = await self._coming(self._resumed)
            if resumed.error is not None:
                raise ShimError(f"cannot connect to this machine: {resumed.error}")
            nursery.cancel_scope.cancel()

    def is_started(self, target: str) -> bool:
        return target in self._started

    def _take(self, resumed: ResumeReply) -> None:
        self.table.resume(resumed.inputs, resumed.times * STREAMS)
        self._times = resumed.times
        for target in self._targets:
            found = resumed.targets.get(target)
            if found is None or found.started:
                self._started.add(target)
            if found is None:
                self._targets[target].known.set()  # forgotten: nobody knows how it has ended
            elif found.ended is not None:
                status, memory, lost = found.ended
                self._take_ended(Ended(target, status, memory, lost, usage=found.usage))

    def _take_event(self, event: str, payload: memoryview) -> None:
        if event != "resumed":
            super()._take_event(event, payload)
            return
        resumed = decoded(payload, ResumeReply)
        # another token: it was for one that was killed as well
        if resumed.token == self._token and not self._resumed.came:
            if resumed.error is None:
                self._take(resumed)
            self._resumed.set(resumed)

    def _dispatch(self, link: ShimLink, kind: int, stream: int, payload: memoryview) -> None:
        is_forged = kind == EVENT and decoded(payload, Event).event == "forged"
        if link is self.table.link or is_forged:  # else a late word for the other, of no matter
            super()._dispatch(link, kind, stream, payload)

    def _take_forged(self, forged: Forged) -> None:
        if forged.times == self._times > 0:  # else it was the connection to the other
            super()._take_forged(forged)

    def _lose(self, reason: str) -> None:
        super()._lose(reason)
        self._resumed.known.set()


def reconnected(
    to_srun: int, from_srun: int, journal: Journal
) -> AbstractAsyncContextManager[ResumedShim]:
    """Carry frames to and from a shim that another has started; see `connected`.

    What is first read may be the rest of something that the other has begun to read.
    """
    return carried(ResumedShim, ShimLink(from_srun, to_srun, BEGINS_WITH), journal)
