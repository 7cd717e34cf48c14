"""Outages disturb everybody. A group of containers waits for one, each at another moment."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import trio

from tests import CHECKOUT
from tests.harness.processes import shims_of, signal_quietly
from tests.stress.chaos.testbed import Testbed

_TOOL = str(CHECKOUT / "tools" / "slurm-cluster")
_ARRIVE = 20.0

Step = Callable[[Testbed], Awaitable[None]]
Action = Callable[[Testbed], AbstractAsyncContextManager[None]]


class Outage:
    """One outage, for a group of containers.

    Attributes:
        on: Whether it has come.
    """

    def __init__(self, action: str, testbed: Testbed, containers: int) -> None:
        self.on = False
        self._action = action
        self._testbed = testbed
        self._expected = containers
        self._everybody = trio.Event()
        self._begun = trio.Event()

    async def wait(self) -> None:
        """Be at the moment for which the outage was meant, and wait for it."""
        self.here()
        await self._begun.wait()

    def here(self) -> None:
        """Take notice that one more container needs not be waited for."""
        self._expected -= 1
        if self._expected == 0:
            self._everybody.set()

    async def come(self, pause: float) -> None:
        """Come when everybody is there, and go after a while."""
        with trio.move_on_after(_ARRIVE):
            await self._everybody.wait()
        async with _ACTIONS[self._action](self._testbed):
            self.on = True
            self._begun.set()
            await trio.sleep(pause)


def _control(*words: str) -> Step:
    async def control(testbed: Testbed) -> None:
        environment = {**os.environ, "SLURM_CLUSTER_DIR": str(testbed.cluster)}
        done = await testbed.children.run([_TOOL, *words], environment)
        if done.status:
            raise RuntimeError(f"slurm-cluster {words}: {done.err}")

    return control


def _signal(number: signal.Signals, *files: str) -> Step:
    async def send(testbed: Testbed) -> None:
        for file in files:
            os.kill(int((testbed.cluster / file).read_text()), number)

    return send


def _slurm(*words: str) -> Step:
    async def call(testbed: Testbed) -> None:
        await testbed.children.run(words, testbed.slurm_environment)

    return call


async def _usable(testbed: Testbed) -> None:
    """Have all nodes usable again."""
    for node in ("node1", "node2"):
        resume = ("scontrol", "update", f"NodeName={node}", "State=RESUME")
        await testbed.children.run(resume, testbed.slurm_environment)
    for _ in range(100):
        done = await testbed.children.run(
            ["sinfo", "-h", "-N", "-o", "%t"], testbed.slurm_environment
        )
        if done.out and set(done.out.split()) <= {"idle", "mix", "alloc", "comp"}:
            return
        await trio.sleep(0.1)
    raise RuntimeError(f"the nodes are not usable: {done.out}")


def _both(*steps: Step, undo: tuple[Step, ...]) -> Action:
    @asynccontextmanager
    async def action(testbed: Testbed) -> AsyncIterator[None]:
        try:
            for step in steps:
                await step(testbed)
            yield
        finally:
            with trio.CancelScope(shield=True):
                for step in undo:
                    await step(testbed)

    return action


def _stopped(*files: str) -> Action:
    return _both(_signal(signal.SIGSTOP, *files), undo=(_signal(signal.SIGCONT, *files),))


def _supervisors(number: signal.Signals) -> Action:
    @asynccontextmanager
    async def action(testbed: Testbed) -> AsyncIterator[None]:
        for pid in testbed.site.supervisors():
            os.kill(pid, number)
        yield

    return action


@asynccontextmanager
async def _pool_kill(testbed: Testbed) -> AsyncIterator[None]:
    await testbed.children.run(["scancel", "--name", testbed.pool], testbed.slurm_environment)
    yield


@asynccontextmanager
async def _pool_shims_kill(testbed: Testbed) -> AsyncIterator[None]:
    words = ["squeue", "-h", "--name", testbed.pool, "-o", "%i"]
    jobs = (await testbed.children.run(words, testbed.slurm_environment)).out.split()
    for pid in [pid for job in jobs for pid in shims_of(job)]:
        signal_quietly(pid, signal.SIGKILL)
    yield


@asynccontextmanager
async def _names_hang(testbed: Testbed) -> AsyncIterator[None]:
    """Be the name service cache, which the C library asks first, and answer nobody (nscd(8))."""
    _CACHE.parent.mkdir(exist_ok=True)
    with trio.socket.socket(trio.socket.AF_UNIX) as listener:
        await listener.bind(str(_CACHE))
        _CACHE.chmod(0o666)
        listener.listen(1024)  # who connects waits; those that are here at the end are hung up on
        try:
            yield
        finally:
            _CACHE.unlink()


_CACHE = Path("/run/nscd/socket")
_CONTROLLER, _MUNGE = "run/slurmctld.pid", "munge/pid"
_NODES = ("run/slurmd-node1.pid", "run/slurmd-node2.pid")
_KILL = signal.SIGKILL

_ACTIONS: dict[str, Action] = {
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
    "pool-kill": _pool_kill,
    "pool-shims-kill": _pool_shims_kill,
    "node-kill": _both(
        _control("fail", "node1"),  # where Slurm packs the pool's jobs
        _slurm("scontrol", "update", "NodeName=node1", "State=DOWN", "Reason=chaos"),
        undo=(_control("heal", "node1"), _usable),
    ),
    "node-drain": _both(
        _slurm("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=chaos"),
        undo=(_usable,),
    ),
    "names-hang": _names_hang,
    "supervisors-kill": _supervisors(signal.SIGKILL),
    "supervisors-term": _supervisors(signal.SIGTERM),
}
NAMES = tuple(_ACTIONS)
