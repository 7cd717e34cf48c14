"""The keeper: a process that holds what containers need to live, and calls a successor.

It receives that over a line, and when the supervisor has died, it calls a program that starts
another supervisor, and gives all of it to that (`supervisor.keeper`, `scrun.client.hand_over`); it
calls the program again for as long as that fails: scrun may just be being installed anew. If the
keeper dies, or does not read, another one takes its place, and is told all; if supervisor and
keeper die at once, all ends with them. Only KILL ends it: whoever ends a session or a service
sends SIGTERM to it and to the supervisor, in any order.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import BinaryIO

import trio

from scrun.core import rights
from scrun.core.paths import python, python_code
from scrun.supervisor.children.processes import Child, ChildEnv, child
from scrun.supervisor.core.deposits import Deposits
from scrun.supervisor.core.inheritance import KeeperLine
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.keeper import main
from scrun.supervisor.keeper.main import named
from scrun.supervisor.log.supervisor_log import log


def _source(module: ModuleType) -> str:
    with open(str(module.__file__), encoding="utf-8") as file:
        return file.read()


_KEEPER = f"""\
import sys
of_ours = type(sys)("scrun.core.rights")
exec({_source(rights)!r}, of_ours.__dict__)
sys.modules[of_ours.__name__] = of_ours
exec({_source(main)!r})
"""
_PROGRAM = "from scrun.client.hand_over import hand_over; hand_over(*sys.argv[1:])"
_PAUSE = 1.0
_LIMIT = 60.0  # beside the time after which the program gives up; it may not even start
_LONGEST = 2e9


class Keeper:
    """The keeper of one supervisor."""

    def __init__(
        self,
        root: str,
        name: str,
        deposits: Deposits,
        patience: float,
        changed: Callable[[], None],
        *,
        lingers: bool,
    ) -> None:
        """Prepare.

        Args:
            patience: For how many seconds it calls a successor.
            changed: Called when it has all of that.
            lingers: Whether the supervisor stays when it has nothing to do.
        """
        limit = str(min(patience, _LONGEST) + _LIMIT)
        called = [root, name, str(patience), "1" if lingers else ""]
        self._text = f"{_KEEPER}main(sys.argv[3:], {python_code(_PROGRAM, *called)!r})\n"
        self._words = ["-1", "-1", limit]
        self._root = root
        self._deposits = deposits
        self._changed = changed

    async def run(self) -> None:
        """Run one as soon as it is needed, until this is cancelled."""
        await self._deposits.needed.wait()
        while True:
            try:
                with _line() as (line, theirs, wakes), _texts(self._text, main.ASLEEP) as texts:
                    fds = (*texts, theirs.fileno())
                    async with child(
                        [*self._named(texts[0]), *map(str, fds), *self._words],
                        ChildEnv(dict(os.environ)),
                        stdin=wakes.fileno(),
                        pass_fds=fds,
                        dies_with_us=False,
                    ) as keeper:
                        theirs.close()
                        wakes.close()
                        await self._tell(keeper, line)
                log.warning("the keeper has ended: another one takes its place")
            except OSError as error:
                log.warning("the keeper cannot be started: %s", error)
            await trio.sleep(_PAUSE)

    def _named(self, program: int) -> list[str]:
        """Return the beginning of its command line: all that `ps` shows of it is a name."""
        return [*python(), named(program), main.NAME, self._root]

    async def _tell(self, keeper: Child, line: KeeperLine) -> None:
        """Let it hold everything, until it ends or does not read."""
        try:
            async with unwrapped() as nursery:

                @nursery.start_soon
                async def tell() -> None:
                    await self._deposits.connect(line, self._changed)
                    await self._deposits.deliver()
                    nursery.cancel_scope.cancel()

                await keeper.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._deposits.dismiss()  # if it is to end, we do: nothing is left for a successor
            self._deposits.disconnect()


@contextmanager
def _texts(*texts: str) -> Iterator[tuple[int, ...]]:
    """Yield descriptors of files in memory: programs that need no file, nor room in `ps`."""
    with ExitStack() as stack:
        fds = []
        for text in texts:
            fds.append(os.memfd_create("scrun-keeper"))
            stack.callback(os.close, fds[-1])
            content = text.encode(errors="surrogateescape")
            while content:
                content = content[os.write(fds[-1], content) :]
        yield tuple(fds)


@contextmanager
def _line() -> Iterator[tuple[KeeperLine, socket.socket, BinaryIO]]:
    """Yield a line to a keeper, and the other ends of its socket and its pipe."""
    with ExitStack() as stack:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(theirs)
        with ours:
            readable, writable = os.pipe()
            wakes = stack.enter_context(open(readable, "rb", buffering=0))
            with open(writable, "wb", buffering=0):
                line = stack.enter_context(KeeperLine([ours.fileno(), writable]))
        yield line, theirs, wakes
