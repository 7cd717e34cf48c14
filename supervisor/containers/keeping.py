"""What a container needs to outlive us, and when it is kept (`supervisor.core.deposits`)."""

import os

import msgspec

from scrun.model.states import Phase
from scrun.oci import lookup
from scrun.oci.config import Bundle
from scrun.oci.lookup import Unknown
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.caller import Caller
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.containers.remembered import remembered
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.core.deposits import OWN
from scrun.supervisor.core.inheritance import MADE, OF, Inheritance

_INPUT, _OUTPUT, _ERROR = (f"{OWN}{name}" for name in ("stdin", "stdout", "stderr"))
STREAMS = (_INPUT, _OUTPUT, _ERROR)
"""The names of the caller's descriptors; of a container that is made only the last is kept."""

CAPTURED = "captured."
"""How the names of the descriptors kept for captured output begin."""

_UNMADE = (OF, "pod", "phase", "program", "terminal", "captured")


def forget_making(found: Inheritance) -> None:
    """Forget an unfinished attempt to make a container: it will be made from the start."""
    for name in [name for name in found.fds if not name.startswith((OWN, CAPTURED))]:
        os.close(found.take(name))
    found.facts = {name: found.facts[name] for name in _UNMADE if name in found.facts}


class Keeping:
    """Keeps what one container needs."""

    def __init__(
        self,
        create_request: CreateRequest,
        ledger: Ledger,
        anchor: Anchor,
        stdio: Stdio,
        caller: Caller,
    ) -> None:
        self._deposit = ledger.deposit
        self._create_request = create_request
        self._ledger = ledger
        self._anchor = anchor
        self._stdio = stdio
        self._caller = caller

    async def unmade(self, bundle: Bundle, program: lookup.Found | Unknown) -> None:
        """Keep what it needs while it waits for its job, and is staged: it is about to be created.

        Does nothing for one that has no queue to wait in, or that is kept already.
        """
        deposit = self._deposit
        if deposit.job is not None and not (deposit.is_kept or deposit.why_not):
            kept = dict(zip(STREAMS, self._stdio.fds, strict=True))
            kept[f"{OWN}anchor"] = self._anchor.fileno()
            known = msgspec.to_builtins(program) if isinstance(program, lookup.Found) else None
            await self._begin(kept, (), bundle, phase=Phase.CREATED.name, program=known)

    async def made(
        self, phase: Phase, bundle: Bundle, staged: Staged, *, has_anchor: bool
    ) -> None:
        """Keep what it needs when it is made, or nothing.

        Args:
            phase: Its phase; one that is still being created will be created.
            has_anchor: Whether its engine watches its anchor, not its first process.
        """
        deposit = self._deposit
        if "target" not in deposit.facts:
            deposit.give_up("it was not made by one shim")
        if deposit.why_not:
            deposit.give_up(deposit.why_not)  # it may be the job's reason
            return
        kept = {_ERROR: self._stdio.fds[2]}
        if has_anchor:
            kept[f"{OWN}anchor"] = self._anchor.fileno()
        elif self._caller.lock is not None:
            kept[f"{OWN}pid_file"] = self._caller.lock
        phase = Phase.CREATED if phase is Phase.CREATING else phase
        made = {MADE: msgspec.to_builtins(staged)}
        await self._begin(kept, (_INPUT, _OUTPUT), bundle, phase=phase.name, **made)

    async def _begin(
        self, kept: dict[str, int], without: tuple[str, ...], bundle: Bundle, **facts: object
    ) -> None:
        with remembered(self._create_request, bundle) as memory:
            kept |= {f"{OWN}request": memory, f"{OWN}lock": self._ledger.lock}
            if not self._caller.mounts.are_ours:
                kept[f"{OWN}mounts"] = self._caller.mounts.fileno()
            terminal = self._stdio.terminal is not None
            self._deposit.hold(kept, terminal=terminal, **facts)
            self._deposit.begin()
            self._deposit.drop(*without)
            await self._deposit.be_safe()
