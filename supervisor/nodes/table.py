"""All streams of a shim, by their numbers."""

from collections.abc import Mapping

from scrun.supervisor.nodes.incoming import Incoming
from scrun.supervisor.nodes.link import ShimLink
from scrun.supervisor.nodes.outgoing import Outgoing
from scrun.supervisor.shim.frames import (
    CLOSED,
    CREDIT,
    CREDIT_BYTES,
    DATA,
    END,
    BrokenFrame,
)


class StreamTable:
    """All streams of a shim, by their numbers."""

    def __init__(self, link: ShimLink) -> None:
        self.link = link
        self.outgoing: dict[int, Outgoing] = {}
        self.incoming: dict[int, Incoming] = {}
        self.is_over = False
        self._last = 0

    def number(self) -> int:
        """Return a number for a stream."""
        self._last += 1
        return self._last

    def use(self, link: ShimLink) -> None:
        """Use another connection from now on, for the streams that there are, too."""
        self.link = link
        for incoming in self.incoming.values():
            incoming.link = link
        for outgoing in self.outgoing.values():
            outgoing.link = link

    def resume(self, inputs: Mapping[str, tuple[int, int]]) -> None:
        """Go on to send where another supervisor was killed.

        Args:
            inputs: How many bytes of a stream the shim has, and how many more it takes, by number.
                A stream that is missing has ended there.
        """
        for number, outgoing in self.outgoing.items():
            if (found := inputs.get(str(number))) is not None:
                outgoing.resume(*found)
            else:
                outgoing.close()

    def begin_at(self, number: int) -> None:
        """Use higher numbers than another supervisor has."""
        self._last = number

    def forget(self, number: int) -> None:
        """Forget a stream; frames of it are dropped from now on."""
        self.outgoing.pop(number, None)
        self.incoming.pop(number, None)

    def begin(self, fields: object) -> None:
        """Begin to send: the shim knows these streams (`ContainerStreams.fields`) now."""
        if isinstance(fields, Mapping):
            for name in ("stdin", "terminal"):
                if (number := fields.get(name)) in self.outgoing:
                    self.outgoing[number].begun.set()

    def dispatch(self, kind: int, number: int, payload: memoryview) -> None:
        """Take a frame. One of a stream that has ended for us is dropped.

        Raises:
            BrokenFrame: It belongs to no stream, or exceeds the window.
        """
        if kind == DATA:
            if number in self.incoming:
                self.incoming[number].take(payload)
        elif kind == END:
            if number in self.incoming:
                self.incoming[number].end()
        elif kind == CREDIT:
            if len(payload) != CREDIT_BYTES.size:
                raise BrokenFrame("a credit without a number")
            if number in self.outgoing:
                self.outgoing[number].credit(CREDIT_BYTES.unpack(payload)[0])
        elif kind == CLOSED:
            if number in self.outgoing:
                self.outgoing[number].close()
        else:
            raise BrokenFrame(f"a frame of kind {kind} is in the wrong place")

    def over(self) -> None:
        """End all streams: no frame will arrive any more."""
        self.is_over = True
        for incoming in self.incoming.values():
            incoming.end()
        for outgoing in self.outgoing.values():
            outgoing.close()
