"""Which containers share a job: those of a pod, and those that follow each other.

::

    server
    ├── held job                as long as it has tenants, or lingers
    └── containers
        └── tenancy             when the last tenant leaves, the job waits, or is released

Containers of a pod talk over localhost and depend on each other, so they run on one node, and are
ended together when that is taken away. The first one requests the job with all its own requests;
the others become further steps of that job.

Every container is a member of a pod, most of them the only one: podman's infra container cannot be
recognized by its config.json, as only the later ones name it (`scrun.core.pods`).

A job that has served its containers may wait for the next one with the same needs (`[slurm]
linger`); another supervisor of the user's may borrow it meanwhile.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
)
from functools import partial

import msgspec
import trio

from scrun.core.place import job_of
from scrun.core.pods import named_pod
from scrun.model.states import Ending
from scrun.oci.config import Config
from scrun.settings.file.load import Settings
from scrun.settings.slurm.request_sources import Flags
from scrun.settings.slurm.requests import TABLE, from_environment
from scrun.supervisor.containers.held_job import HeldJob
from scrun.supervisor.containers.pools import SEAT, Pools
from scrun.supervisor.contracts.engine import Engine, Job, JobPlan, JobRequest
from scrun.supervisor.contracts.reuse import Borrow, HeldAllocation, Loan, Seat, WaitingJob
from scrun.supervisor.core.deposits import Deposits
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import unwrapped

_OF_THE_JOB = [name for name, request in TABLE.items() if request.scope != "step"]
_NAMESPACE = re.compile(r"(/proc/([1-9][0-9]{0,9})/ns)/[a-z_]{1,32}", re.ASCII)
_Key = tuple[object, str]


class Pods:
    """The jobs of a supervisor's containers.

    Attributes:
        lingers: Whether jobs may wait for later containers, and the pool `auto` for them.
        pools: Those in which containers may have a seat.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        deposits: Deposits,
        arrive: Callable[[Config], Awaitable[None]],
        borrow: Borrow,
        changed: Callable[[], None],
        pools: Pools,
        *,
        lingers: bool,
    ) -> None:
        """Begin without pods.

        Args:
            nursery: For the tasks that hold jobs; it has to outlive the containers.
            deposits: Keep what they need to outlive us.
            arrive: Waits for the containers of a pod that are about to be adopted.
            borrow: Finds a job that another supervisor keeps.
            changed: Called when a job is released.
        """
        self._nursery = nursery
        self._deposits = deposits
        self._arrive = arrive
        self._borrow = borrow
        self._changed = changed
        self.lingers = lingers
        self.pools = pools
        self._jobs: dict[_Key, HeldJob] = {}
        self._choosing: dict[_Key, trio.Lock] = {}
        self._waiting: list[HeldJob] = []
        self._held = 0
        self._anchors: dict[int, tuple[str, str]] = {}  # the pod and the container

    @property
    def any(self) -> bool:
        """Whether any job is held."""
        return self._held > 0 or self.pools.any

    @asynccontextmanager
    async def job(
        self,
        engine: Engine,
        request: JobRequest,
        config: Config,
        anchor: int,
        found: Inheritance | None,
        settings: Settings | None = None,
    ) -> AsyncIterator[Job]:
        """Provide the job of a container's pod; the last member to leave lets it go.

        Args:
            found: What another supervisor has left for the container; its job may be pending.
            settings: The container's; None: it has its job.

        Raises:
            AllocationRefused: With the engine's reason.
            SettingsError: Its requests cannot be fulfilled.
        """
        left = None if found is None else found.job
        is_foreign = bool(job_of(request.child_env.environment))  # not ours to share
        if left is None and (is_foreign or not engine.shares_jobs):
            async with self._of_its_own(engine, request, found) as job:
                yield job
            return
        if found is None or left is None:
            await self._arrive(config)
            pod = own = self._pod(request, config)
            request.deposit.note(pod=pod)
        else:
            assert request.deposit.job is not None
            await left.together.turn_of(request.container)
            pod = found.facts.get("pod", left.container)  # the caller's own job is not a pod's
            own = request.deposit.job.name  # others of the pod may have another one already
            if left.is_of_pool or left.facts.get(SEAT):
                own = pod
        made = found if found is not None and found.is_made else None
        request = msgspec.structs.replace(request, joins=self._joins(config, pod))
        with self._known(anchor, pod, request.container):
            async with self._alone((engine, own)):
                plan = None
                if (held := self._jobs.get((engine, own))) is None:
                    plan = None if made else await engine.plan(request)
                    if left is not None and left.is_of_pool:
                        held = self._seated_again(engine, request, left)
                    elif left is not None and not left.facts.get(SEAT):
                        held = self._again(engine, plan, request, left)
                    elif plan is not None:
                        held = await self._held_by(engine, plan, request, settings)
                    assert held is not None
                    for name in (own, pod):
                        self._jobs.setdefault((engine, name), held)
                held.enter(request)
            if left is None:
                request.deposit.needs(held.deposit)
            else:
                left.together.joins(request.container)  # the next one has its turn
            async with self._tenancy(engine, held, request, plan, made) as job:
                yield job

    @asynccontextmanager
    async def _of_its_own(
        self, engine: Engine, request: JobRequest, found: Inheritance | None
    ) -> AsyncIterator[Job]:
        if found is not None:
            async with engine.adopted(request, found) as job:
                yield job
            return
        deposit = self._deposits.new_of_job(request.container)
        try:
            request = msgspec.structs.replace(request, job_deposit=deposit)
            async with engine.allocate(request) as job:
                yield job
        finally:
            deposit.end()

    def _again(
        self, engine: Engine, plan: JobPlan | None, request: JobRequest, left: Inheritance
    ) -> HeldJob:
        """Hold the job that another supervisor had.

        Args:
            plan: How to ask for it; None: it has containers.
        """
        deposit = request.deposit.job
        assert deposit is not None
        hold_again = engine.held_again if plan is None else plan.hold

        @asynccontextmanager
        async def hold(first: JobRequest) -> AsyncIterator[HeldAllocation]:
            try:
                async with hold_again(first, left) as allocation:
                    yield allocation
            finally:
                left.close()

        return self._begin(HeldJob(engine, request, hold, deposit))

    @asynccontextmanager
    async def _tenancy(
        self,
        engine: Engine,
        held: HeldJob,
        request: JobRequest,
        plan: JobPlan | None = None,
        found: Inheritance | None = None,
    ) -> AsyncIterator[Job]:
        """Be a tenant, who has entered, of a job.

        Args:
            plan: How it has asked for the job; None for one that joins others.
            found: What another supervisor has left for the container.
        """
        try:
            await held.settled.wait()
            if (allocation := held.allocation) is None:
                raise held.refusal(request)
            if request is not held.first:
                await held.ready.wait()
            opened: AbstractAsyncContextManager[Job]
            mine = msgspec.structs.replace(request, job_deposit=held.deposit)
            if plan is not None:
                opened = plan.job(mine, allocation)
            elif found is not None:
                beside = msgspec.structs.replace(mine, beside=allocation)
                opened = engine.adopted(beside, found)
            else:
                opened = engine.allocate(_step_request(mine, held, allocation))
            async with opened as job:
                held.ready.set()
                with job.entered():
                    yield job
        finally:
            held.leave(request)
            if not held.tenants:
                await self._used(held)

    @contextmanager
    def _known(self, anchor: int, pod: str, container: str) -> Iterator[None]:
        """Let others name a container by its anchor while the block runs."""
        self._anchors[anchor] = (pod, container)
        try:
            yield
        finally:
            self._anchors.pop(anchor, None)

    @asynccontextmanager
    async def _alone(self, key: _Key) -> AsyncIterator[None]:
        """Let others of a pod wait while its job is chosen."""
        lock = self._choosing.setdefault(key, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._choosing.pop(key, None)

    async def _held_by(
        self, engine: Engine, plan: JobPlan, request: JobRequest, settings: Settings | None
    ) -> HeldJob:
        """Return a job that waits, or one that is begun."""
        if (wish := plan.seat) is not None:
            # what has waited in a pool has one already
            deposit = request.deposit.job or self._deposits.new_of_job(request.container)
            seated = partial(self._seated, plan, wish, engine, settings)
            return self._begin(HeldJob(engine, request, seated, deposit))
        linger = plan.linger if self.lingers and plan.needs else 0

        @asynccontextmanager
        async def hold(first: JobRequest) -> AsyncIterator[HeldAllocation]:
            borrowed = await self._borrow(plan.needs) if linger else None
            if borrowed is not None:
                new.linger = 0  # the lender lets it wait
                _tell(first, borrowed.facts["job"])
            try:
                async with plan.hold(first, borrowed) as allocation:
                    yield allocation
            finally:
                if borrowed is not None:
                    borrowed.close()

        if linger and (held := await self._take(plan.needs, engine)) is not None:
            _tell(request, held.job_id)
            return held
        deposit = self._deposits.new_of_job(request.container)
        new = HeldJob(engine, request, hold, deposit, linger)
        return self._begin(new)

    @asynccontextmanager
    async def _seated(
        self,
        plan: JobPlan,
        wish: Seat,
        engine: Engine,
        settings: Settings | None,
        first: JobRequest,
    ) -> AsyncIterator[HeldAllocation]:
        """Hold a seat in a pool, or a job where a default names a pool that cannot be used."""
        own = settings
        if (
            settings is not None and not self.lingers
        ):  # we end with this pod, so the pool does, too, if there is to be one
            slurm = msgspec.structs.replace(settings.slurm, pool_idle=0)
            own = msgspec.structs.replace(settings, slurm=slurm) if wish.is_asked else None
        async with self.pools.seat(wish, first, engine, own) as seat:
            if seat is not None:
                yield seat
                return
        async with plan.hold(first, None) as allocation:
            yield allocation

    def _seated_again(self, engine: Engine, request: JobRequest, left: Inheritance) -> HeldJob:
        """Hold the seat in a pool that a container has had."""
        deposit = self._deposits.new_of_job(request.container)
        seated = partial(self.pools.seat_again, left.container)
        return self._begin(HeldJob(engine, request, seated, deposit))

    def _begin(self, held: HeldJob) -> HeldJob:
        """Get a job."""

        async def run() -> None:
            try:
                await held.run(partial(self._forget, held))
            finally:
                self._held -= 1
                self._changed()

        self._held += 1
        self._nursery.start_soon(run)
        return held

    def _forget(self, held: HeldJob) -> None:
        """Let no further container have a job."""
        self._jobs = {key: other for key, other in self._jobs.items() if other is not held}
        self._waiting = [one for one in self._waiting if one is not held]

    async def _used(self, held: HeldJob) -> None:
        """Let a job wait when its last tenant has left, or release it."""
        self._forget(held)
        if self.lingers and held.may_wait:
            held.wait()
            self._waiting.append(held)
        else:
            with trio.CancelScope(shield=True):
                await held.release()

    async def _take(self, needs: bytes, engine: Engine | None = None) -> HeldJob | None:
        """Take a job out of those that wait: the last one, so that the others may end.

        Args:
            engine: Whose it has to be; None: any engine's.
        """
        for held in [*reversed(self._waiting)]:
            is_theirs = engine in (None, held.engine)
            if held in self._waiting and is_theirs and held.allocation is not None:
                self._waiting.remove(held)
                taken = False
                try:
                    taken = await held.allocation.serves(needs) and held.is_usable
                finally:
                    if held.is_usable and not taken:
                        self._waiting.append(held)
                if taken:
                    return held
        return None

    def waiting_jobs(self) -> list[WaitingJob]:
        """Return the jobs that wait for their next container."""
        return [held.waiting() for held in self._waiting if held.is_usable]

    async def release_waiting(self, job_id: str = "") -> list[str]:
        """Release a job that waits for its next container, or all of them; return their ids.

        Raises:
            EngineError: The engine cannot be reached.
        """
        found = {held.job_id: held for held in self._waiting if job_id in ("", held.job_id)}
        async with unwrapped() as nursery:
            for held in found.values():
                nursery.start_soon(held.release)
        return [*found]

    @asynccontextmanager
    async def lend(
        self, needs: bytes, on_lost: Callable[[Ending], None]
    ) -> AsyncIterator[Loan | None]:
        """Lend a job that waits to another supervisor (see `contracts.reuse.Lend`)."""
        held = await self._take(needs)
        if held is None or held.allocation is None:
            yield None
            return
        loan = held.allocation.for_another()
        tenant = held.stand_in(on_lost, lambda: loan.clean)
        held.enter(tenant)
        try:
            yield loan
        finally:
            held.leave(tenant)
            await self._used(held)

    def _pod(self, request: JobRequest, config: Config) -> str:
        """Return the name of a container's pod.

        A container that joins another one's namespaces (`--network container:ID`) is in its pod.
        The engine takes those namespaces from the other's anchor, the only process that it knows.
        """
        if name := named_pod(config.annotations):
            return name
        return next((pod for _, (pod, _) in self._named(config)), request.container)

    def _joins(self, config: Config, pod: str) -> dict[str, str]:
        """Return the containers of a pod whose namespaces are joined (`JobRequest.joins`)."""
        return {where: other for where, (its, other) in self._named(config) if its == pod}

    def _named(self, config: Config) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yield where config.json has namespaces of other containers, and which these are."""
        for where, anchor in named_anchors(config):
            if (other := self._anchors.get(anchor)) is not None:
                yield where, other


def _tell(request: JobRequest, job_id: str) -> None:
    """Log that a job is not a new one."""
    request.journal.write("info", f"it reuses job {job_id}, which was waiting for a container")


def named_anchors(config: Config) -> Iterator[tuple[str, int]]:
    """Yield where config.json has namespaces of other processes, and which these are."""
    for namespace in config.linux.namespaces:
        if found := _NAMESPACE.fullmatch(namespace.path):
            yield found[1], int(found[2])


def _step_request(request: JobRequest, held: HeldJob, job: HeldAllocation) -> JobRequest:
    """Turn a request into one for a step of an existing job.

    Drops all that would size a job, defaults included: srun knows most of it too, and 22.05
    refuses a step that wants more than its job has ("More processors requested than permitted").
    """
    environment = request.child_env.environment
    wanted = {**request.flags.requests, **request.config_requests, **from_environment(environment)}
    text = f"it joins job {job.job_id}, in a pod with container {held.first.container}"
    ignored = [f"{name}={value}" for name, value in wanted.items() if name in _OF_THE_JOB]
    if ignored:
        text += f", which has sized it: {', '.join(ignored)} have no effect"
    request.journal.write("info", text)
    child_env = request.child_env.with_more({**_nothing_of_the_job(), **job.environment})
    return msgspec.structs.replace(
        request,
        child_env=child_env,
        config_requests={
            name: text for name, text in request.config_requests.items() if name not in _OF_THE_JOB
        },
        flags=Flags(notes=request.flags.notes),
        on_job_id=lambda job_id, _: request.on_job_id(job_id, True),
        beside=job,
    )


def _nothing_of_the_job() -> Mapping[str, str]:
    """Override what lower sources may request (`scrun.settings.slurm.request_sources`)."""
    return {
        name: "" if TABLE[name].argument == "required" else "no"  # empty would switch it on
        for name in _OF_THE_JOB
    }
