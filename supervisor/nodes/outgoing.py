"""A stream to a container or an exec: its standard input, or its terminal's."""

from contextlib import AbstractAsyncContextManager

import trio

from scrun.supervisor.nodes.counted_source import CountedSource
from scrun.supervisor.nodes.ends import Source
from scrun.supervisor.nodes.link import Broken, ShimLink, buffer
from scrun.supervisor.shim.frames import DATA, END, PIECE, WINDOW, BrokenFrame


class Outgoing:
    """A stream to the container.

    Attributes:
        opened: Set when the caller's descriptor is not needed any more.
        begun: To be set when the shim knows the stream.
    """

    def __init__(self, link: ShimLink, number: int) -> None:
        self.opened = trio.Event()
        self.begun = trio.Event()
        self.link = link
        self._number = number
        self._allowed = WINDOW
        self._taken = 0
        self._more = trio.Event()
        self._scope = trio.CancelScope()

    def credit(self, count: int) -> None:
        """Allow more bytes.

        Raises:
            BrokenFrame: They are more than it may have on their way.
        """
        if self._allowed + count > WINDOW:
            raise BrokenFrame(f"it takes more than {WINDOW} bytes of a stream")
        self._allowed += count
        self._more.set()

    def resume(self, taken: int, allowed: int) -> None:
        """Begin to send where another supervisor was killed.

        Args:
            taken: How many bytes the shim has.
            allowed: How many more it takes.
        """
        self._taken, self._allowed = taken, allowed
        self.begun.set()

    def close(self) -> None:
        """Stop reading: nobody takes it any more."""
        self._scope.cancel()

    async def pump(self, opened: AbstractAsyncContextManager[Source]) -> None:
        """Send what is read until its end.

        Args:
            opened: The source; closed as soon as it is not needed.
        """
        try:
            with self._scope:
                try:
                    async with opened as found:
                        self.opened.set()
                        await self.begun.wait()
                        if isinstance(found, CountedSource):
                            found.go_to(self._taken)
                        await self._send_all(found)
                finally:
                    self.opened.set()
                    if self.begun.is_set():
                        self.link.put(END, self._number)
        except Broken:
            pass  # the shim has gone, which others tell

    async def _send_all(self, found: Source) -> None:
        room = buffer(PIECE)
        while True:
            while self._allowed <= 0:
                self._more = trio.Event()
                await self._more.wait()
            most = min(PIECE, self._allowed)
            count = await found.read_into(room[:most])
            if not count:
                return
            self._allowed -= count
            await self.link.send(DATA, self._number, room[:count])
