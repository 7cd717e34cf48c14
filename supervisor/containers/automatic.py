"""How many nodes the pool `auto` has: it starts when a container wants it, and ends by itself."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import trio

from scrun.cli.pools import AUTO
from scrun.settings.file.load import Settings
from scrun.settings.slurm.requests import TABLE
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.pool_node import PoolNode
from scrun.supervisor.contracts.pool_call import PoolCall
from scrun.supervisor.contracts.reuse import Room
from scrun.supervisor.log.supervisor_log import fault

_PATIENCE = 3.0
AGAIN = 60.0
"""Seconds until Slurm is asked again that has refused a job."""


class Size(Protocol):
    """A pool, as far as its size goes."""

    nodes: list[PoolNode]

    @property
    def waits_since(self) -> float:
        """When the first of those came that wait; `inf` without any."""
        ...

    @property
    def size(self) -> int: ...

    def grow(self, count: int) -> Sequence[PoolNode]: ...


class Automatic:
    """Lets a pool grow when containers wait, and shrink when nobody needs its nodes.

    One more job is asked for when the first of those that wait has done so for 3 s, and no other
    job of the pool is pending: so there is one more at a time, and Slurm is asked little.
    """

    def __init__(self, pool: Size, settings: Settings, ended: Callable[[], None]) -> None:
        """`ended`: called when it has no node, and nobody waits for one."""
        self._pool = pool
        self._most, self._idle = settings.slurm.pool_max, settings.slurm.pool_idle
        self._ended = ended
        self._scope = trio.CancelScope()
        self._not_before = -math.inf
        self._unneeded: dict[PoolNode, float] = {}
        self._is_over = False
        self._like: Room | None = None

    def may_have(self, room: Room) -> bool:
        """Tell whether a node that it may ask for some day has room for a container."""
        like = next((node.room for node in self._pool.nodes if node.room), self._like)
        return not self._is_over and (like is None or room.fits(like))

    def refused(self) -> None:
        """Note that a job could not be had."""
        self._not_before = trio.current_time() + AGAIN

    def end(self) -> None:
        """Ask for nothing more."""
        self._is_over = True
        self._scope.deadline = -math.inf

    def adapt(self) -> None:
        """Look at those who wait, and at those whom nobody needs."""
        if self._is_over:
            return
        now, pool = trio.current_time(), self._pool
        staying = [node for node in pool.nodes if not node.is_retiring]
        self._like = next((node.room for node in staying if node.room is not None), self._like)
        due = math.inf
        may_ask = pool.size < self._most and all(node.room is not None for node in staying)
        if may_ask and pool.waits_since < math.inf:
            first = pool.waits_since + _PATIENCE if staying else now
            due = max(first, self._not_before)
        if due <= now:
            try:
                pool.grow(1)
                due = math.inf
            except OSError as error:  # the root directory takes no claim
                fault("pool auto does not grow", error)
                self.refused()
                due = self._not_before
        if not pool.nodes and pool.waits_since == math.inf:
            self.end()
            self._ended()
            return
        is_needed = pool.waits_since < math.inf
        self._unneeded = {
            node: self._unneeded.get(node, now)
            for node in staying
            if node.is_idle and not is_needed
        }
        ends = (since + self._idle for since in self._unneeded.values())
        self._scope.deadline = min(due, *ends, math.inf)

    async def keep_time(self) -> None:
        """Do all that when it is due, until the pool has ended."""
        while not self._is_over:
            with trio.CancelScope() as self._scope:
                self.adapt()
                await trio.sleep_forever()
            now = trio.current_time()
            for node, since in [*self._unneeded.items()]:
                if since + self._idle <= now:
                    node.retire()


def automatic_call(settings: Settings, child_env: ChildEnv) -> PoolCall:
    """Return what its jobs are requested with, when the first container wants it.

    That has requests of its own in its environment, which are not the pool's.
    """
    own = {name: text for name, text in child_env.environment.items() if name not in TABLE}
    environment = {**own, **settings.slurm.pool_node}
    child_env = msgspec.structs.replace(child_env, environment=environment)
    return PoolCall(AUTO, child_env, "/", settings)
