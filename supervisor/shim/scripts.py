"""Runs the supervisor's shell scripts on the node."""

import os

from scrun.supervisor.wire.frames import LONGEST, SCRIPT_OUTPUT

from .children import exit_status
from .json_text import dumps
from .loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .children import Children
    from .loop import Loop

_PIECE = 1 << 16


class Script:
    """A script that runs; it replies when its shell has ended."""

    def __init__(
        self,
        loop: "Loop",
        children: "Children",
        text: str,
        runtime: "Sequence[str]",
        reply: "Callable[[dict[str, Any]], None]",
        enter: "Callable[[], None] | None" = None,
    ) -> None:
        """Run it.

        Args:
            reply: Called with its status and its output.
            enter: Enters the namespaces that it runs in, if they are not ours.

        Raises:
            OSError: No process or descriptor is left.
        """
        self._loop, self._reply = loop, reply
        self._output = bytearray()
        self._pipe, there = os.pipe()
        os.set_blocking(self._pipe, False)
        env = dict(os.environ, SCRUN_RUNTIME=" ".join(map(_quoted, runtime)))
        try:
            children.spawn(
                ["/bin/sh", "-c", text],
                self._ended,
                stdio=(None, there, there),
                env=env,
                enter=enter,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(there)
        loop.watch(self._pipe, READ, lambda _: self._read())

    def _read(self) -> None:
        """Take what there is; what is too much goes."""
        try:
            data = os.read(self._pipe, _PIECE)
        except BlockingIOError:
            return
        if data:
            self._output += data[: SCRIPT_OUTPUT - len(self._output)]
        else:
            self._loop.forget(self._pipe)

    def _ended(self, status: int) -> None:
        for _ in range(2):  # what it left in the background may go on writing
            self._read()
        self._loop.forget(self._pipe)
        os.close(self._pipe)
        text = self._output.decode("utf-8", "replace")
        while len(dumps(text)) > LONGEST - _PIECE:
            text = text[: len(text) // 2]
        self._reply({"status": exit_status(status), "text": text})


def _quoted(word: str) -> str:
    """Return a word for the shell, as shlex.quote, which brings re, does."""
    return "'" + word.replace("'", "'\"'\"'") + "'"
