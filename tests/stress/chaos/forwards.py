"""`scrun forward` beside a container: somebody asks its server through that, while things break.

A fault may break a connection. The next one works, as long as the container lives.
"""

import itertools
from typing import TYPE_CHECKING, Any

import trio

from tests.stress.chaos.children import Call
from tests.stress.chaos.connections import SERVERS
from tests.stress.chaos.faults import ENDING, RUNNING
from tests.stress.chaos.plan import Plan
from tests.stress.chaos.processes import LATER, signals
from tests.stress.chaos.seen import Answer

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container

_PAUSE = 0.05
_AGAIN = 0.1
_WORKS = 150.0
_KILLED = "its connections break; another `scrun forward` of the container works"

FORWARDS = signals(
    "forward",
    (RUNNING, ENDING),
    {"KILL": _KILLED, "TERM": "as KILL", "INT": "as KILL", "STOP": LATER},
    {},
)
"""What happens to the command."""


def port_of(plan: Plan) -> int:
    """Return the server's port: no other one's, as it may have the network of others."""
    return SERVERS[plan.number % len(SERVERS)]


def server(plan: Plan) -> str:
    """Return shell commands that begin a server, and wait for it: it says what it is told."""
    listens = f"grep -qi ':{port_of(plan):04x} ' /proc/net/tcp*"
    return f"nc -ll -p {port_of(plan)} -e cat & until {listens}; do sleep 0.01; done; "


def share_network(plan: Plan, config: dict[str, Any]) -> None:
    """Give every other container the network of its node, if somebody makes its /sys fit."""
    if plan.number % 2 and plan.kind != "script":
        namespaces = config["linux"]["namespaces"]
        config["linux"]["namespaces"] = [one for one in namespaces if one["type"] != "network"]


class Asking:
    """Somebody who asks one container, over one connection at a time.

    Attributes:
        may_break: Whether nobody counts any more what breaks.
    """

    def __init__(self, container: "Container", nursery: trio.Nursery) -> None:
        self.may_break = False
        self._container = container
        self._nursery = nursery
        self._numbers = itertools.count(1)
        self._answered = trio.Event()

    async def run(self) -> None:
        """Ask until the container has ended."""
        container = self._container
        while not (container.is_over or self.may_break):
            call, port = await self._forward()
            while port and not (container.is_over or self._has_gone(call)):
                try:
                    async with await self._connected(port) as stream:
                        await self._converse(stream)
                except (OSError, trio.BrokenResourceError) as error:
                    container.note(f"a connection to port {port} broke: {error}")
                    container.seen.broken += not self.may_break
                    await trio.sleep(_AGAIN)
            await trio.sleep(_AGAIN)
        self._answered.set()

    async def works(self) -> None:
        """Wait for the answer on a connection that is new, or for the end of the container."""
        if self._container.is_over:
            return
        self._answered = trio.Event()
        with trio.move_on_after(_WORKS) as patience:
            await self._answered.wait()
        if patience.cancelled_caught:
            self._container.seen.hangs.append(
                f"{type(self).__name__}: nothing works for {_WORKS:g} s"
            )

    def _has_gone(self, call: Call | None) -> bool:
        return call is not None and self._container.parent.has_ended(call.pid, 0)

    async def _connected(self, port: int) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", port)

    async def _forward(self) -> tuple[Call | None, int]:
        """Begin a `scrun forward`; return its port, or 0."""
        container, plan = self._container, self._container.plan
        words = ("forward", container.id, f"0:{port_of(plan)}")
        call = await container.testbed.call(plan, container.parent, *words)
        container.where.forward = call.pid
        self._nursery.start_soon(self._see, call)
        await call.out.until(b"\n")
        return call, _local(call.out.text)

    async def _see(self, call: Call) -> None:
        done = await call.done()
        container, port = self._container, port_of(self._container.plan)
        container.note(f"forward ended with {done.status}: {done.err}")
        why = f"scrun: container {container.id}: port {port}: "  # a connection broke
        err = "".join(line for line in done.err.splitlines(True) if not line.startswith(why))
        right = Answer(0, f"127.0.0.1:{_local(done.out)} -> {port}\n")
        container.seen.watched.append(("forward", Answer(done.status, done.out, err), right))

    async def _converse(self, stream: trio.SocketStream) -> None:
        """Say one line after the other, until somebody waits for another connection."""
        answered = self._answered
        while self._answered is answered:
            line = b"%d\n" % next(self._numbers)
            await stream.send_all(line)
            answer = b""
            while not answer.endswith(b"\n"):
                if not (part := await stream.receive_some()):
                    raise trio.BrokenResourceError("its end came")
                answer += part
            if answer != line:
                self._container.seen.wrong_answers.append(f"{answer!r} instead of {line!r}")
            answered.set()
            await trio.sleep(_PAUSE)


def _local(text: str) -> int:
    """Return the port of this machine of which `scrun forward` tells; 0 if it tells of none."""
    port = text.partition(" ")[0].rpartition(":")[2]
    return int(port) if port.isdigit() else 0
