"""Troubles: what disturbs everybody. A group of lives waits for one, each at another moment."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from tests import CHECKOUT
from tests.stress.chaos.place import Place

_TOOL = str(CHECKOUT / "tools" / "slurm-cluster")
_ARRIVE = 20.0

Step = Callable[[Place], Awaitable[None]]
Deed = Callable[[Place], AbstractAsyncContextManager[None]]


class Trouble:
    """One trouble, for a group of lives.

    Attributes:
        on: Whether it has come.
    """

    def __init__(self, deed: str, place: Place, lives: int) -> None:
        self.on = False
        self._deed = deed
        self._place = place
        self._expected = lives
        self._everybody = trio.Event()
        self._begun = trio.Event()

    async def wait(self) -> None:
        """Be at the moment for which the trouble was meant, and wait for it."""
        self.here()
        await self._begun.wait()

    def here(self) -> None:
        """Take notice that one more life needs not be waited for."""
        self._expected -= 1
        if self._expected == 0:
            self._everybody.set()

    async def come(self, pause: float) -> None:
        """Come when everybody is there, and go after a while."""
        with trio.move_on_after(_ARRIVE):
            await self._everybody.wait()
        async with _DEEDS[self._deed](self._place):
            self.on = True
            self._begun.set()
            await trio.sleep(pause)


def _control(*words: str) -> Step:
    async def control(place: Place) -> None:
        environment = {**os.environ, "SLURM_CLUSTER_DIR": str(place.cluster)}
        done = await place.children.run([_TOOL, *words], environment)
        if done.status:
            raise RuntimeError(f"slurm-cluster {words}: {done.err}")

    return control


def _signal(number: signal.Signals, *files: str) -> Step:
    async def send(place: Place) -> None:
        for file in files:
            os.kill(int((place.cluster / file).read_text()), number)

    return send


def _slurm(*words: str) -> Step:
    async def call(place: Place) -> None:
        await place.children.run(words, place.slurm_environment)

    return call


async def _usable(place: Place) -> None:
    """Have all nodes usable again."""
    resume = ("scontrol", "update", "NodeName=node2", "State=RESUME")
    await place.children.run(resume, place.slurm_environment)
    for _ in range(100):
        done = await place.children.run(["sinfo", "-h", "-N", "-o", "%t"], place.slurm_environment)
        if done.out and set(done.out.split()) <= {"idle", "mix", "alloc", "comp"}:
            return
        await trio.sleep(0.1)
    raise RuntimeError(f"the nodes are not usable: {done.out}")


def _both(*steps: Step, undo: tuple[Step, ...]) -> Deed:
    @asynccontextmanager
    async def deed(place: Place) -> AsyncIterator[None]:
        try:
            for step in steps:
                await step(place)
            yield
        finally:
            with trio.CancelScope(shield=True):
                for step in undo:
                    await step(place)

    return deed


def _stopped(*files: str) -> Deed:
    return _both(_signal(signal.SIGSTOP, *files), undo=(_signal(signal.SIGCONT, *files),))


def _supervisors(number: signal.Signals) -> Deed:
    @asynccontextmanager
    async def deed(place: Place) -> AsyncIterator[None]:
        for pid in place.site.supervisors():
            os.kill(pid, number)
        yield

    return deed


_CONTROLLER, _MUNGE = "run/slurmctld.pid", "munge/pid"
_NODES = ("run/slurmd-node1.pid", "run/slurmd-node2.pid")
_KILL = signal.SIGKILL

_DEEDS: dict[str, Deed] = {
    "controller-restart": _both(_control("stop-controller"), undo=(_control("start-controller"),)),
    "controller-kill": _both(_signal(_KILL, _CONTROLLER), undo=(_control("start-controller"),)),
    "controller-stop": _stopped(_CONTROLLER),
    "slurmd-kill": _both(
        *(_control("fail", node) for node in ("node1", "node2")),
        undo=tuple(_control("heal", node) for node in ("node1", "node2")),
    ),
    "slurmd-stop": _stopped(*_NODES),
    "munged-restart": _both(_control("stop-munge"), undo=(_control("start-munge"),)),
    "munged-stop": _stopped(_MUNGE),
    "node-down": _both(
        _slurm("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=chaos"),
        undo=(_usable,),
    ),
    "supervisors-kill": _supervisors(signal.SIGKILL),
    "supervisors-term": _supervisors(signal.SIGTERM),
}
NAMES = tuple(_DEEDS)
