"""What a shim says: replies, events, errors."""

from collections.abc import Collection, Mapping
from typing import Annotated, TypeVar

import msgspec

from scrun.core.errors import EngineError
from scrun.core.text import one_line, printable
from scrun.supervisor.shim.frames import BrokenFrame

T = TypeVar("T")


class ShimError(EngineError):
    """The shim could not do what it was asked.

    Attributes:
        log: The log of the OCI runtime, as lines of JSON; "" if there is none.
        unseen: Whether a file is not there on the node.
        others: The numbers of the directories that are others on the node.
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


class Asked(msgspec.Struct, frozen=True):
    """That a shim asks for its code, see `supervisor.shim`."""

    python: str
    error: str = ""
    waited: float = 0.0


class Forged(msgspec.Struct, frozen=True):
    """That a shim has got something that we have not sent, see `supervisor.shim`."""

    error: str


class Hello(msgspec.Struct, frozen=True):
    """What a shim says of itself, see `supervisor.shim`."""

    protocol: int
    node: str
    pid: int
    python: str = ""
    runtime: str = ""
    directory: str = ""
    oci_conf: str = ""
    oci_conf_sum: int = 0
    environment: Mapping[str, str] = {}
    rank: int = 0


class Ended(msgspec.Struct, frozen=True):
    """That a container or an exec has ended, see `supervisor.shim`."""

    target: str
    status: int
    memory: bool = False
    lost: bool = False


class Strangers(msgspec.Struct, frozen=True):
    """That others have come to a port of a shim's, see `supervisor.shim`."""

    who: Annotated[str, msgspec.Meta(max_length=1000)]


class Target(msgspec.Struct, frozen=True):
    """What became of a container while there was no supervisor, see `supervisor.shim`."""

    started: bool
    ended: tuple[int, bool, bool] | None = None


class Resumed(msgspec.Struct, frozen=True):
    """That a shim goes on with another supervisor, see `supervisor.shim`."""

    token: str
    error: str | None = None
    times: int = 1
    targets: Mapping[str, Target] = {}
    inputs: Mapping[str, tuple[int, int]] = {}


class Reply(msgspec.Struct, frozen=True):
    """The reply to a call, as far as it is always the same, see `supervisor.shim`."""

    call: int
    error: str | None = None
    log: str = ""
    unseen: bool = False
    others: tuple[int, ...] = ()
    root: bool = False


class Event(msgspec.Struct, frozen=True):
    """The kind of an event, see `supervisor.shim`."""

    event: str


def decoded(payload: memoryview, kind: type[T]) -> T:
    """Return a message.

    Raises:
        BrokenFrame: It is not JSON of that form.
    """
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenFrame(f"what it sends is not understood: {error}") from error
