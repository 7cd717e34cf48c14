"""What a shim says: replies, events, errors."""

from collections.abc import Collection, Mapping
from typing import Annotated, TypeVar

import msgspec

from scrun.core.errors import EngineError
from scrun.core.text import one_line, printable
from scrun.core.typed import decode_as
from scrun.model.usage import Usage
from scrun.supervisor.wire.frames import (
    CREDIT,
    CREDIT_BYTES,
    DATA,
    EVENT,
    LINE,
    LONGEST,
    REPLY,
    WINDOW,
    BrokenFrame,
)

STREAMS = 1_000_000
"""How many numbers for streams each supervisor of a shim has: more than it needs."""

_LAST_SIGNAL = 64

T = TypeVar("T")


class ShimError(EngineError):
    """The shim could not do what it was asked.

    Attributes:
        log: The log of the OCI runtime, as lines of JSON; "" if there is none.
        unseen: Whether a file is not there on the node.
        others: The numbers of the directories that differ on the node.
        refused: Whether the node's kernel refuses an overlay.
    """

    def __init__(
        self,
        message: str,
        log: str = "",
        *,
        unseen: bool = False,
        others: Collection[int] = (),
        refused: bool = False,
    ) -> None:
        super().__init__(printable(one_line(message)))
        self.log = log
        self.unseen, self.others, self.refused = unseen, frozenset(others), refused


class ShimLost(EngineError):
    """The shim has gone, and with it what it made."""


Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Word = Annotated[str, msgspec.Meta(max_length=4096)]
Words = Annotated[str, msgspec.Meta(max_length=1 << 16)]

_MOST_TIMES = (1 << 32) // STREAMS - 1

LONGEST_EVENT = 1 << 20
LONGEST_REPLY = 1 << 20
"""The most bytes of any reply but a script's."""

_LONGEST_REPLIES = {
    "script": LONGEST,  # what it has written, in which a byte may take six
    **dict.fromkeys(("create", "start", "exec", "delete", "mount"), LONGEST_REPLY),  # a log
}
_SHORT_REPLY = 1 << 16


def longest_reply(verb: str) -> int:
    """Return the most bytes of the reply to a call."""
    return _LONGEST_REPLIES.get(verb, _SHORT_REPLY)


def longest(kind: int, *, script: bool) -> int:
    """Return the most bytes of a frame's payload, before anything of that is read.

    `script`: whether a reply may be a script's.
    """
    return {
        REPLY: LONGEST if script else LONGEST_REPLY,
        EVENT: LONGEST_EVENT,
        DATA: WINDOW,
        CREDIT: CREDIT_BYTES.size,
        LINE: 1,
    }.get(kind, 0)


class Asked(msgspec.Struct, frozen=True):
    """That a shim asks for its code, see `supervisor.shim`."""

    python: Word
    error: Words = ""
    waited: float = 0.0


class Forged(msgspec.Struct, frozen=True):
    """That a shim has got something that we have not sent, see `supervisor.shim`."""

    error: str
    times: int = 0


class Hello(msgspec.Struct, frozen=True):
    """What a shim says of itself, see `supervisor.shim`."""

    protocol: int
    node: Word
    pid: Number
    python: Word = ""
    runtime: Word = ""
    directory: Word = ""
    oci_conf: Word = ""
    oci_conf_sum: Number = 0
    environment: Annotated[Mapping[Word, Word], msgspec.Meta(max_length=32)] = {}
    rank: int = 0
    gmac: bool = False


class Ended(msgspec.Struct, frozen=True):
    """That a container or an exec has ended, see `supervisor.shim`."""

    target: str
    status: int
    memory: bool = False
    lost: bool = False
    told: bool = False
    usage: Usage | None = None


class Strangers(msgspec.Struct, frozen=True):
    """That others have connected to a port of a shim's, see `supervisor.shim`."""

    who: Word


class TargetReport(msgspec.Struct, frozen=True):
    """What became of a container while there was no supervisor, see `supervisor.shim`."""

    started: bool
    ended: tuple[int, bool, bool] | None = None
    usage: Usage | None = None


class ResumeReply(msgspec.Struct, frozen=True):
    """That a shim goes on with another supervisor, see `supervisor.shim`."""

    token: Word
    error: Words | None = None
    times: Annotated[int, msgspec.Meta(ge=1, le=_MOST_TIMES)] = 1
    targets: Mapping[str, TargetReport] = {}
    inputs: Mapping[str, tuple[Number, Annotated[int, msgspec.Meta(ge=0, le=WINDOW)]]] = {}


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply to a call, see `supervisor.shim`; other members are not read."""

    call: int
    error: str | None = None
    log: str = ""
    unseen: bool = False
    others: tuple[int, ...] = ()
    root: bool = False
    pid: int = 0
    filter: str = ""
    handles: bool = False
    status: Annotated[int, msgspec.Meta(ge=0, lt=256)] = 0
    text: str = ""
    way: str = ""
    path: Word = ""
    comes: bool = False
    addresses: Annotated[
        tuple[tuple[Word, Annotated[int, msgspec.Meta(ge=1, lt=1 << 16)]], ...],
        msgspec.Meta(max_length=64),
    ] = ()
    words: str = ""
    network: str = ""
    number: int = 0
    why: str = ""
    host: str = ""


class Event(msgspec.Struct, frozen=True):
    """The kind of an event, see `supervisor.shim`."""

    event: Word


def is_end(status: int) -> bool:
    """Tell whether this is a wait status (waitpid(2)) of a process that has ended."""
    signal = status & 0x7F
    if signal:
        return 0 < status <= 0xFF and signal <= _LAST_SIGNAL
    return 0 <= status <= 0xFF00 and not status & 0xFF


def decoded(payload: memoryview, kind: type[T]) -> T:
    """Return a message; raises BrokenFrame if it has another form."""
    try:
        return decode_as(payload, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenFrame(f"it sent a message that is not understood: {error}") from error
