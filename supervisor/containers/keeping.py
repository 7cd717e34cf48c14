"""What a container needs to outlive us, and when it is kept (`supervisor.core.deposits`).

What a successor has to know of its request, settings and bundle is in memory. All was read when
the container was created. Since then the files may have been changed or removed, or their file
system may hang, which must end no container.
"""

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from scrun.core.typed import convert
from scrun.model.states import Phase
from scrun.oci import lookup
from scrun.oci.config import Bundle, Config
from scrun.oci.lookup import Unknown
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.caller import Caller
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.core.deposits import OWN
from scrun.supervisor.core.inheritance import MADE, OF, Inheritance

_FAST = 1  # four fifths of what the best level saves, in a third of the time


@contextmanager
def remembered(create_request: CreateRequest, bundle: Bundle) -> Iterator[int]:
    """Yield a descriptor of a file in memory with all of it."""
    known = known_of(create_request, bundle)
    memory = os.memfd_create("scrun-request", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            # variables and paths need not be UTF-8; json can write and read such, msgspec cannot
            file.write(zlib.compress(json.dumps(known).encode(), _FAST))
        yield memory
    finally:
        os.close(memory)


def known_of(create_request: CreateRequest, bundle: Bundle) -> dict[str, Any]:
    """Return all of it, as `remembered` writes it."""
    return {
        "request": msgspec.to_builtins(create_request),
        "bundle": {name: getattr(bundle, name) for name in ("path", "config_file", "rootfs")},
        "config": bundle.raw,
    }


def recalled(memory: int) -> tuple[CreateRequest, Bundle]:
    """Return the request and the bundle.

    Raises:
        ValueError: It is something else.
    """
    content = os.pread(memory, os.fstat(memory).st_size, 0)
    try:
        known: dict[str, Any] = json.loads(zlib.decompress(content))
        create_request = convert(known["request"], CreateRequest)
        raw = known["config"]
        config = convert(raw, Config)
    except (zlib.error, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"this is not a request: {error}") from error
    return create_request, Bundle(**known["bundle"], config=config, raw=raw)


_INPUT, _OUTPUT, _ERROR = (f"{OWN}{name}" for name in ("stdin", "stdout", "stderr"))
REQUEST = f"{OWN}request"
"""The name of what `remembered` yields."""

STREAMS = (_INPUT, _OUTPUT, _ERROR)
"""The names of the caller's descriptors; of a container that is made only the last is kept."""

CAPTURED = "captured."
"""How the names of the descriptors kept for captured output begin."""

ENGINE_NETWORK = "engine_network"
"""The fact that names the network that docker has made for it."""

_UNMADE = (OF, "pod", "phase", "program", "terminal", "captured", ENGINE_NETWORK)


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
        kept[f"{OWN}lock"] = self._ledger.lock
        if not self._caller.mounts.are_ours:
            kept[f"{OWN}mounts"] = self._caller.mounts.fileno()
        terminal = self._stdio.terminal is not None
        self._deposit.make(REQUEST, partial(remembered, self._create_request, bundle))
        self._deposit.share(kept, terminal=terminal, **facts)
        self._deposit.begin()
        self._deposit.drop(*without)
        await self._deposit.be_safe()
