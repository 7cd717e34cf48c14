"""Pools: jobs that are held for containers that come and go, several on a node at once.

::

    pool                        from `pool start` to `pool stop`
    ├── node, ...               a held job with a shim; the pool is a tenant of it
    └── queue                   containers for which no node has room

The pool `auto` lasts from the first container that wants it to its last idle node (`automatic`).

A container in a pool has a held job of its own, like any other, whose allocation is a seat on a
node: so its pod, its ending and its refusal are its own affair, and Slurm hears nothing of it.
"""

import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import msgspec
import trio

from scrun.cli.pools import AUTO
from scrun.core.errors import (
    AllocationRefused,
    SettingsError,
    StateError,
    described,
)
from scrun.core.typed import convert
from scrun.model.states import Ending, killed
from scrun.model.waiting import Waiting, waiting_line
from scrun.settings.file.load import Level, Log, Settings
from scrun.supervisor.containers.automatic import AGAIN, Automatic, automatic_call
from scrun.supervisor.containers.claims import Claim, is_on_its_way
from scrun.supervisor.containers.pool_node import GPUS, PoolNode
from scrun.supervisor.contracts.engine import Engine, JobRequest
from scrun.supervisor.contracts.pool_call import (
    PoolCall,
    pool_call_in_memory,
    recalled_pool_call,
)
from scrun.supervisor.contracts.reuse import HeldAllocation, Room, Seat
from scrun.supervisor.core.deposits import Deposit, Deposits
from scrun.supervisor.core.inheritance import POOL, Inheritance
from scrun.supervisor.core.nurseries import bulkhead, unwrapped
from scrun.supervisor.log.journal import Journal, Shown
from scrun.supervisor.log.supervisor_log import log

SEAT = "seat"
"""The fact that says that the deposit of a container's job stands for its seat in a pool."""

_CALL, _CLAIM = "pool.call", "pool.claim"
_ROOM = "room"
_SIGTERM = 15
_ARRIVING, _PAUSE = 20.0, 0.05
_BUSY, _PENDING = Waiting("PoolResources"), Waiting("PoolPending")


class _Place:
    """A container's place in the queue of a pool."""

    def __init__(self, request: JobRequest, room: Room, seconds: float) -> None:
        self.request = request
        self.room, self.seconds = room, seconds
        self.since = trio.current_time()
        self.node: PoolNode | None = None
        self.settled = trio.Event()
        self.news: Waiting | None = None

    def waits(self, news: Waiting | None) -> None:
        """Tell its container what it waits for, if that is news."""
        if news is not self.news:
            self.news = news
            if news is not None:
                line = waiting_line("", news, explained=True)
                self.request.journal.write("info", line)
            self.request.on_waiting(news)


class PoolRow(msgspec.Struct, frozen=True):
    """What `pool list` shows of a node, and of its pool.

    Attributes:
        free, room: None while it is pending.
    """

    pool: str
    job_id: str
    node: str
    state: str
    containers: int
    waiting: int
    free: Room | None
    room: Room | None


class Pool:
    """One pool.

    Attributes:
        call: What its jobs are requested with.
        nodes: Its jobs.
    """

    def __init__(
        self,
        call: PoolCall,
        engine: Engine,
        root: str,
        deposits: Deposits,
        nursery: trio.Nursery,
        ended: Callable[["Pool"], None],
    ) -> None:
        """Begin without nodes. `ended`: called when it has none any more."""
        self.call = call
        self.nodes: list[PoolNode] = []
        self._engine = engine
        self._root = root
        self._deposits = deposits
        self._nursery = nursery
        self._ended = ended
        self._queue: OrderedDict[_Place, None] = OrderedDict()
        self._why = ""
        self._known_nodes: list[tuple[PoolNode, bool, bool]] = []
        self._changed = trio.Event()
        self._journal = Journal("/dev/null", Log(level="quiet"), "", Shown(stderr="debug5"))
        self._journal.show_to(self._write)
        self._request = call.job_request(root, self._journal)
        self._automatic: Automatic | None = None
        self.is_stopped = False
        self.refused = ""
        if call.name == AUTO:
            self._automatic = Automatic(self, call.settings, self._cease)
            nursery.start_soon(bulkhead, "the size of pool auto", self._automatic.keep_time)

    def _write(self, level: Level, text: str) -> None:
        if level in ("fatal", "error"):
            log.error("pool %s: %s", self.call.name, text)

    # Its nodes

    def grow(self, count: int) -> list[PoolNode]:
        """Ask for so many more nodes."""
        new = []
        for _ in range(count):
            deposit = self._deposits.new_of_job(self._request.container)
            with pool_call_in_memory(self.call) as memory:
                claim = Claim(self._root, self.call.name)
                facts = {POOL: self.call.name, _CLAIM: claim.name}
                deposit.hold({_CALL: memory, _CLAIM: claim.fd}, **facts)
                deposit.begin()
            new.append(self._begin(deposit, claim))
        return new

    def adopt(self, left: Inheritance) -> None:
        """Have a node of a supervisor that has died; what it has left is owned from now on."""
        deposit = self._deposits.again(left)
        deposit.begin()
        claim = Claim(self._root, self.call.name, left.facts[_CLAIM], left.take(_CLAIM))
        self._begin(deposit, claim, left)

    def _begin(self, deposit: Deposit, claim: Claim, left: Inheritance | None = None) -> PoolNode:
        node = PoolNode(self._engine, self._request, deposit, claim, self._look_at, left)
        self.nodes.append(node)
        self._nursery.start_soon(self._run, node)
        return node

    async def _run(self, node: PoolNode) -> None:
        try:
            await node.run()
        finally:
            self.nodes.remove(node)
            failure = node.held.failure
            self._why = described(failure) if failure and not node.ended else self._why
            if failure and self._automatic is not None:
                self._automatic.refused()
            if not self.nodes:  # a lost one is replaced before, if somebody waits
                self.refused = self._why if failure else ""
                self._cease()
            self._serve()

    def _cease(self) -> None:
        if self._automatic is not None:
            self._automatic.end()
        self._journal.close()
        self._ended(self)

    def _look_at(self, node: PoolNode) -> None:
        """See what a node's change means for those who wait, and for itself."""
        self._why = node.ended or self._why
        if node.is_retiring and node.is_idle and not node.is_released:
            node.is_released = True
            what = f"a node of pool {self.call.name}"
            self._nursery.start_soon(bulkhead, what, node.held.release)
        self._serve()

    def shrink(self, count: int) -> None:
        """Let so many nodes go: pending and idle ones first, others when they are empty."""
        staying = [node for node in self.nodes if not node.is_retiring]
        staying.sort(key=lambda node: (node.room is not None, node.containers))
        for node in staying[:count]:
            node.retire()

    @property
    def size(self) -> int:
        """How many nodes it has, or will have, without those that it lets go."""
        return sum(not node.is_retiring for node in self.nodes)

    @property
    def waits_since(self) -> float:
        """When the first of those came that wait; `inf` without any."""
        return next(iter(self._queue)).since if self._queue else math.inf

    async def known(self, nodes: list[PoolNode]) -> None:
        """Wait until Slurm has accepted jobs, or refused one.

        Raises:
            Exception: One was refused; with Slurm's reason.
        """
        while True:
            for node in nodes:
                if (failure := node.held.failure) is not None:
                    raise failure
            if all(node.held.job_id or node.held.settled.is_set() for node in nodes):
                return
            await self._changed.wait()

    async def end(self, ending: Ending) -> None:
        """Release all nodes; their containers, and those that wait, end so."""
        self._why, self.is_stopped = ending.text, True
        if self._automatic is not None:
            self._automatic.end()
        if not self.nodes:
            self._cease()
            self._serve()
        for node in [*self.nodes]:
            node.end_containers(ending)
        while self.nodes:
            await self._changed.wait()

    # Its containers

    @asynccontextmanager
    async def seat(
        self, request: JobRequest, room: Room, seconds: float
    ) -> AsyncIterator[HeldAllocation | None]:
        """Provide a node with room and time while the block runs; None: none could ever have it.

        Raises:
            AllocationRefused: The pool ended meanwhile.
        """
        request.job_deposit.note(**{SEAT: self.call.name})
        request.deposit.note(**{_ROOM: msgspec.to_builtins(room)})
        place = _Place(request, room, seconds)
        self._queue[place] = None
        try:
            self._serve(place)
            await place.settled.wait()
            place.waits(None)
            if place.node is None:
                if not self.size and not self._may_grow(place):
                    text = f"no job for container {request.container}: pool {self.call.name}"
                    raise AllocationRefused(f"{text} has ended: {self._why or 'it has no node'}")
                yield None
                return
            yield place.node.seat(request)
        finally:
            if place.node is not None:
                place.node.leave(request)
            elif place in self._queue:
                del self._queue[place]
                self._adapt()

    @asynccontextmanager
    async def seat_again(
        self, node: PoolNode, request: JobRequest
    ) -> AsyncIterator[HeldAllocation]:
        """Go on with the seat of a container that another supervisor has left.

        Raises:
            AllocationRefused: Its node cannot be held any more.
        """
        facts = request.deposit.facts  # of a pod it is the first one's
        room = Room(0) if _ROOM not in facts else convert(facts[_ROOM], Room)
        node.take(request, room, convert(facts.get(GPUS, []), list[str]))
        try:
            await node.held.settled.wait()
            if node.held.allocation is None:
                raise node.held.refusal(request)
            yield node.seat(request)
        finally:
            node.leave(request)

    def _serve(self, new: _Place | None = None) -> None:
        """Give room to those who wait, the first ones first; smaller ones may pass larger ones.

        Args:
            new: Who has just come: for the others nothing has changed.
        """
        news = None  # until Slurm has accepted a job: else `create` can still say why not
        if any(node.held.job_id for node in self.nodes):
            news = _BUSY if any(node.room is not None for node in self.nodes) else _PENDING
        places = [*self._queue] if new is None else [new]
        least = Room(min((place.room.processors for place in places), default=0))
        is_full = not any(node.has_room(least) for node in self.nodes)
        nodes = [(node, node.room is None, node.is_retiring) for node in self.nodes]
        are_as_before = new is None and bool(nodes) and nodes == self._known_nodes
        if new is None:
            self._known_nodes = nodes
        for place in places:
            if is_full and are_as_before and place.news is news:
                continue  # of 10,000 nobody else is looked at
            wish = (place.room, place.seconds)
            fitting = [] if is_full else [one for one in self.nodes if one.has_room(*wish)]
            if fitting:
                place.node = min(fitting, key=_by_free)
                place.node.take(place.request, place.room)
                is_full = not any(node.has_room(least) for node in self.nodes)
            elif self._may_grow(place) or any(node.could_have(*wish) for node in self.nodes):
                place.waits(news)
                continue
            del self._queue[place]
            place.settled.set()
        self._adapt()
        self._changed.set()
        self._changed = trio.Event()

    def _may_grow(self, place: _Place) -> bool:
        return self._automatic is not None and self._automatic.may_have(place.room)

    def _adapt(self) -> None:
        if self._automatic is not None:
            self._automatic.adapt()

    def rows(self) -> list[PoolRow]:
        """Return what `pool list` shows."""
        return [
            PoolRow(
                pool=self.call.name,
                job_id=node.held.job_id,
                node=node.name,
                state=node.state,
                containers=node.containers,
                waiting=len(self._queue),
                free=node.free if node.room else None,
                room=node.room,
            )
            for node in self.nodes
        ]


def _by_free(node: PoolNode) -> tuple[int, int, int]:
    """Sort nodes: the fuller ones first, so that large containers find room elsewhere."""
    return node.free.gpus, node.free.processors, node.containers


class Pools:
    """The pools of a supervisor, by name."""

    def __init__(
        self, root: str, nursery: trio.Nursery, deposits: Deposits, changed: Callable[[], None]
    ) -> None:
        """`changed`: called when one has ended."""
        self._root = root
        self._nursery = nursery
        self._deposits = deposits
        self._changed = changed
        self._pools: dict[str, Pool] = {}
        self._no_auto, self._why_no_auto = -math.inf, ""  # until when

    @property
    def any(self) -> bool:
        """Whether any job is held."""
        return bool(self._pools)

    async def start(self, call: PoolCall, engine: Engine, count: int) -> list[PoolNode]:
        """Start a pool; return its nodes when Slurm has accepted their jobs.

        Raises:
            ScrunError: It cannot be started; nothing is left of it.
            OSError: Likewise.
        """
        if call.name == AUTO:
            raise StateError("pool auto starts by itself, when a container wants it")
        if call.name in self._pools:
            raise StateError(f"pool {call.name} exists already: stop it first, or resize it")
        pool = self._new(call, engine)
        try:
            nodes = pool.grow(count)
            await pool.known(nodes)
            return nodes
        except BaseException:
            with trio.CancelScope(shield=True):
                await pool.end(killed(_SIGTERM, f"pool {call.name} could not be started"))
            self._forget(pool)
            raise

    def _new(self, call: PoolCall, engine: Engine) -> Pool:
        if not engine.shares_jobs:
            raise SettingsError(f"engine {engine.name} has no pools: they are jobs of Slurm")
        pool = Pool(call, engine, self._root, self._deposits, self._nursery, self._forget)
        self._pools[call.name] = pool
        return pool

    def _forget(self, pool: Pool) -> None:
        if self._pools.get(pool.call.name) is pool:
            del self._pools[pool.call.name]
        if pool.call.name == AUTO and pool.refused:
            self._no_auto, self._why_no_auto = trio.current_time() + AGAIN, pool.refused
        self._changed()

    def adopt(self, left: Inheritance, engine: Engine, call: PoolCall) -> None:
        """Have a node of a supervisor that has died, see `Pool.adopt`."""
        pool = self._pools.get(call.name) or self._new(call, engine)
        try:
            pool.adopt(left)
        finally:
            if not pool.nodes:
                self._forget(pool)
        log.info("pool %s: adopted job %s", call.name, left.facts.get("job", ""))

    def deposit_of(self, name: str) -> Deposit | None:
        """Return the deposit of a node's job by its name; None if no pool has it."""
        return None if (found := self._node(name)) is None else found[1].deposit

    def _node(self, name: str) -> tuple[Pool, PoolNode] | None:
        nodes = ((pool, node) for pool in self._pools.values() for node in pool.nodes)
        return next((one for one in nodes if one[1].deposit.name == name), None)

    @asynccontextmanager
    async def seat_again(self, name: str, request: JobRequest) -> AsyncIterator[HeldAllocation]:
        """Go on with the seat of a container that another supervisor has left.

        Args:
            name: That of the deposit of its node's job.

        Raises:
            AllocationRefused: Its node cannot be held any more.
        """
        if (found := self._node(name)) is None:
            text = f"no job for container {request.container}: its pool could not be kept"
            raise AllocationRefused(text)
        async with found[0].seat_again(found[1], request) as seat:
            yield seat

    @property
    def is_kept(self) -> bool:
        """Whether a successor finds any."""
        return any(node.deposit.is_kept for pool in self._pools.values() for node in pool.nodes)

    @property
    def unadoptable(self) -> dict[str, str]:
        """Those whose nodes a successor would not all find, and why."""
        nodes = ((pool, node) for pool in self._pools.values() for node in pool.nodes)
        return {pool.call.name: why for pool, node in nodes if (why := node.deposit.why_not)}

    def end_unadoptable(self) -> None:
        """Begin to stop those."""
        for name in self.unadoptable:
            self._nursery.start_soon(bulkhead, f"pool {name}", partial(self.stop, name))

    async def resize(self, name: str, count: int) -> bool:
        """Let a pool have another number of nodes; return whether there is such a pool.

        Raises:
            ScrunError: Slurm refuses a job; the pool stays as it was.
        """
        if (pool := self._pools.get(name)) is None:
            return False
        if count < pool.size:
            pool.shrink(pool.size - count)
            return True
        nodes = pool.grow(count - pool.size)
        try:
            await pool.known(nodes)
        except BaseException:
            for node in nodes:
                node.retire()
            raise
        return True

    async def stop(self, name: str) -> bool:
        """Stop a pool, with its containers; return whether there was one."""
        if (pool := self._pools.get(name)) is None:
            return False
        await pool.end(killed(_SIGTERM, f"pool {name} was stopped"))
        return True

    async def stop_all(self) -> None:
        async with unwrapped() as nursery:
            for name in self._pools:
                nursery.start_soon(self.stop, name)

    async def _arrive(self, name: str) -> None:
        """Wait for a pool that is about to be adopted; return at once for any other."""
        with trio.move_on_after(_ARRIVING), suppress(OSError):
            while is_on_its_way(self._root, name, self._claims()):
                if name in self._pools:
                    return
                await trio.sleep(_PAUSE)

    def _claims(self) -> set[str]:
        return {node.claim.name for pool in self._pools.values() for node in pool.nodes}

    def rows(self) -> list[PoolRow]:
        """Return what `pool list` shows."""
        return [row for pool in self._pools.values() for row in pool.rows()]

    @asynccontextmanager
    async def seat(
        self, wish: Seat, request: JobRequest, engine: Engine, settings: Settings | None
    ) -> AsyncIterator[HeldAllocation | None]:
        """Provide a container's seat in a pool while the block runs; None: it has none there.

        Args:
            engine, settings: The container's, for the pool `auto`; None: that does not start here.

        Raises:
            AllocationRefused: It asks for the pool, and cannot have that; or that ended.
        """
        if wish.pool not in self._pools:
            await self._arrive(wish.pool)
        pool, why_not = self._pools.get(wish.pool), wish.why_not
        if pool is None and wish.pool == AUTO:
            if settings is None:
                why_not = "its supervisor is for this pod alone"
            elif not wish.is_asked and trio.current_time() < self._no_auto:
                why_not = why_not or self._why_no_auto
            elif wish.room is not None:
                call = automatic_call(settings, request.child_env)
                pool = self._new(call, engine)
        elif pool is None:
            why_not = (
                "there is none of that name here: start it with `scrun pool start`, for rootless "
                "podman with `podman unshare scrun pool start`"
            )
        if pool is not None and wish.room is not None:
            async with AsyncExitStack() as stack:
                seated = pool.seat(request, wish.room, wish.seconds)
                try:
                    seat = await stack.enter_async_context(seated)
                    why_not = f"none of its nodes has {wish.room}"
                    why_not += ", and as much time left as it asks for" if wish.seconds else ""
                except AllocationRefused as error:
                    if wish.is_asked or pool.call.name != AUTO or pool.is_stopped:
                        raise
                    seat, why_not = None, described(error)
                if seat is not None:
                    if wish.room.memory:
                        text = f"nothing holds it to {wish.room.memory:g} MiB of memory in a pool"
                        request.journal.write("info", text)
                    yield seat
                    return
        if wish.is_asked:
            raise AllocationRefused(
                f"no job for container {request.container} in pool {wish.pool}: {why_not}"
            )
        request.job_deposit.note(**{SEAT: ""})
        request.journal.write("info", f"it has a job of its own, not pool {wish.pool}: {why_not}")
        yield None


def call_of(left: Inheritance) -> PoolCall:
    """Return what the pool's jobs are requested with.

    Raises:
        ValueError: The supervisor has left something else.
    """
    return recalled_pool_call(left.fds[_CALL])
