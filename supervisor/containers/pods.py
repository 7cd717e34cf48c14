"""Containers of one pod share one job.

::

    server
    ├── job of a pod            kept while it has members
    └── containers
        └── membership          when the last member leaves, the job is released

Containers of a pod talk over localhost and depend on each other, so they run on one node, and are
ended together when that is taken away. The first one requests the job with all its own requests;
the others become further steps of that job.

A task of the server keeps the job, not one of the first member: members join and leave in any
order, and all get every event. Every container is a member, most of them the only one: podman's
infra container cannot be recognized by its config.json, as only the later ones name it
(`scrun.core.pods`).
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeVar, cast

import msgspec
import trio

from scrun.core.errors import AllocationRefused, ScrunError, described
from scrun.core.place import job_of
from scrun.core.pods import named_pod
from scrun.model.states import FATAL, Ending, taken
from scrun.model.waiting import Waiting, waiting_line
from scrun.oci.config import Config
from scrun.settings.slurm.engine_flags import Flags
from scrun.settings.slurm.requests import TABLE, from_environment
from scrun.supervisor.contracts.adoption import AdoptedJob, Adopts
from scrun.supervisor.contracts.engine import Engine, Job, JobRequest
from scrun.supervisor.contracts.neighbours import SharesNamespaces
from scrun.supervisor.contracts.reuse import Borrow, Keep
from scrun.supervisor.core.deposits import Deposit, Deposits
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.mounts import OURS
from scrun.supervisor.log.supervisor_log import fault

_SHARING = ("slurm",)  # elsewhere there is nothing to share: this machine is one node
_OF_THE_JOB = [name for name, request in TABLE.items() if request.scope != "step"]
_NAMESPACE = re.compile(r"(/proc/([1-9][0-9]{0,9})/ns)/[a-z_]{1,32}", re.ASCII)


_AJob = TypeVar("_AJob", bound=Job)
Hold = Callable[[JobRequest], AbstractAsyncContextManager[Job]]
"""Holds a job: a new one, or that of a dead supervisor."""


class SharedJob:
    """The job of a pod.

    Attributes:
        first: The first member's request, with which it is requested.
        hold: Holds it.
        deposit: Keeps what it needs to outlive us.
        keys: What `Pods` finds it by.
        members: The requests of those who wait for it or are in it.
        scope: Cancelled when the job is no longer needed.
        settled: Set when there is a job, or there will be none.
        released: Set when it is released.
        job: The job, once allocated.
        failure: Why there is no job, or what went wrong with it.
    """

    def __init__(self, first: JobRequest, hold: Hold, deposit: Deposit) -> None:
        self.first = first
        self.hold = hold
        self.deposit = deposit
        self.keys: list[tuple[object, str]] = []
        self.members: list[JobRequest] = []
        self.scope = trio.CancelScope()
        self.settled = trio.Event()
        self.released = trio.Event()
        self.job: Job | None = None
        self.failure: Exception | None = None
        self._endings = msgspec.convert(deposit.facts.get("endings", []), list[Ending])
        self._reusable = True
        self._job_id = ""
        self._news: Waiting | None = None

    def request(
        self, lost: Callable[[Ending], None], keep: Keep | None, borrow: Borrow | None
    ) -> JobRequest:
        """Return the first member's request, with callbacks that reach all members.

        Args:
            lost: Called when the job is taken away.
        """
        return msgspec.structs.replace(
            self.first,
            on_job_id=self._known,
            on_lost=lost,
            on_waiting=self._waiting,
            on_suspended=self._suspended,
            ending=lambda: ending_of(self._endings),
            reusable=lambda: self._reusable,
            keep=keep,
            borrow=borrow,
            job_deposit=self.deposit,
        )

    def enter(self, member: JobRequest) -> None:
        """Add a member, and tell it what the others know."""
        self.members.append(member)
        if self._job_id:
            member.on_job_id(self._job_id, True)
        if self._news is not None:
            member.on_waiting(self._news)

    def leave(self, member: JobRequest) -> None:
        """Remove a member, and keep how it ended.

        The job is still that of the others: a member that failed may not release it.
        """
        self.members.remove(member)
        if self._job_id and self.members:
            member.on_job_id(self._job_id, False)
        if (ending := member.ending()) is not None:
            self._endings = that_count([*self._endings, ending])
            if self.members:
                self.deposit.note(endings=msgspec.to_builtins(self._endings))
        self._reusable &= member.reusable()

    def lost(self, ending: Ending) -> None:
        """Tell the members that the job was taken away."""
        for member in [*self.members]:
            member.on_lost(ending)

    def _known(self, job_id: str, owned: bool) -> None:
        """Tell the members the job's id.

        Each records the job as its own: when the supervisor dies, all members are dead, and the
        first `delete` releases the job.
        """
        self._job_id = job_id
        for member in self.members:
            member.on_job_id(job_id, owned)

    def _waiting(self, news: Waiting | None) -> None:
        self._news = news
        for member in self.members:
            if news is not None and member is not self.first:  # the engine logs it for the first
                line = waiting_line(self._job_id, news, explained=True)
                member.journal.write("info", line)
            member.on_waiting(news)

    def _suspended(self, suspended: bool) -> None:
        for member in self.members:
            member.on_suspended(suspended)

    def refusal(self, member: JobRequest) -> Exception:
        """Return why a member gets no job."""
        if self.failure is None:  # only the supervisor's end stops its task before that is set
            text = f"no job for container {member.container}: the supervisor is stopping"
            return AllocationRefused(text)
        if member is self.first:
            return self.failure
        return AllocationRefused(
            f"no job for container {member.container}, in a pod with {self.first.container}: "
            f"{described(self.failure)}",
            getattr(self.failure, "reason", "scrun-failure"),
        )


def that_count(members: Sequence[Ending]) -> list[Ending]:
    """Leave out endings of members that do not decide how the pod ends, whoever follows."""
    by_itself = next((one for one in members if one.status - 128 not in FATAL), None)
    counting = dict.fromkeys((by_itself, ending_of(members)))
    return [one for one in counting if one is not None]


def ending_of(members: Sequence[Ending]) -> Ending | None:
    """Return how a pod ended, from the endings of its members in order.

    The first failure counts, but not those of killed members: stopping a pod kills its infra
    container, and perhaps helpers beside the one that did the work.
    """
    by_themselves = [one for one in members if one.status - 128 not in FATAL]
    failed = (one for one in by_themselves if one.status)
    return next(failed, None) or next(iter(by_themselves or reversed(members)), None)


class Pods:
    """The jobs of a supervisor's pods.

    Attributes:
        keep_longer: Holds jobs beyond their containers; None: nothing does.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        deposits: Deposits,
        arrive: Callable[[Config], Awaitable[None]],
        keep: Keep | None = None,
        borrow: Borrow | None = None,
    ) -> None:
        """Begin without pods.

        Args:
            nursery: For the tasks that keep jobs; it has to outlive the containers.
            deposits: Keep what they need to outlive us.
            arrive: Waits for the containers of a pod that are about to be adopted.
            keep: Holds jobs beyond that, where the supervisor serves later containers.
            borrow: Finds a job that another supervisor keeps.
        """
        self._nursery = nursery
        self._deposits = deposits
        self._arrive = arrive
        self._borrow = borrow
        self.keep_longer = keep
        self._jobs: dict[tuple[object, str], SharedJob] = {}
        self._anchors: dict[int, tuple[str, str]] = {}  # the pod and the container

    @asynccontextmanager
    async def allocate(
        self, engine: Engine, request: JobRequest, config: Config, anchor: int
    ) -> AsyncIterator[Job]:
        """Get the job of a container's pod; the last member to leave releases it.

        Raises:
            AllocationRefused: With the engine's reason.
            SettingsError: Its requests cannot be fulfilled.
        """
        foreign = job_of(request.child_env.environment)  # not ours to share
        if foreign or engine.name not in _SHARING:
            deposit = self._deposits.new_of_job(request.container)
            try:
                request = msgspec.structs.replace(request, job_deposit=deposit)
                async with engine.allocate(request) as job:
                    yield job
            finally:
                deposit.end()
            return
        await self._arrive(config)
        key = (engine, self._pod(request, config))
        request.deposit.note(pod=key[1])
        request = msgspec.structs.replace(request, joins=self._joins(config, key[1]))
        shared = self._jobs.get(key)
        if shared is None:
            deposit = self._deposits.new_of_job(request.container)
            shared = SharedJob(request, engine.allocate, deposit)
            self._begin(shared, key)
        request.deposit.needs(shared.deposit)

        def of_another() -> AbstractAsyncContextManager[Job]:
            return engine.allocate(_step_request(request, shared))

        async with self._member(key[1], shared, request, anchor, of_another) as job:
            yield job

    @asynccontextmanager
    async def adopted(
        self, engine: Adopts, request: JobRequest, found: Inheritance, anchor: int
    ) -> AsyncIterator[AdoptedJob]:
        """Take over the job of a container that another supervisor has made, which has died."""
        if (left := found.job) is None:
            async with engine.adopted(request, found) as job:
                yield job
            return
        pod = found.facts.get("pod", left.container)  # the caller's own job is not a pod's
        shared = self._again(engine, request, left, pod, partial(engine.adopted, found=found))

        def of_the_first() -> AbstractAsyncContextManager[AdoptedJob]:
            return engine.adopted(msgspec.structs.replace(request, beside=shared.job), found)

        async with self._member(pod, shared, request, anchor, of_the_first) as job:
            yield job

    @asynccontextmanager
    async def allocated_again(
        self, engine: Engine, request: JobRequest, config: Config, found: Inheritance, anchor: int
    ) -> AsyncIterator[Job]:
        """Take over the job of a container that another supervisor had yet to make.

        The job may still be pending.

        Raises:
            AllocationRefused: With the engine's reason.
            SettingsError: Its requests cannot be fulfilled.
        """
        left = found.job
        assert left is not None
        await left.together.turn_of(request.container)
        pod = found.facts["pod"]
        request = msgspec.structs.replace(request, joins=self._joins(config, pod))

        def hold(first: JobRequest) -> AbstractAsyncContextManager[Job]:
            return engine.allocate(msgspec.structs.replace(first, left=left))

        shared = self._again(engine, request, left, pod, hold)

        def of_another() -> AbstractAsyncContextManager[Job]:
            return engine.allocate(_step_request(request, shared))

        async with self._member(pod, shared, request, anchor, of_another) as job:
            yield job

    def _again(
        self, engine: object, request: JobRequest, left: Inheritance, pod: str, hold: Hold
    ) -> SharedJob:
        """Return the job that another supervisor had; the first call holds it.

        The caller becomes a member at once: the next one has its turn then.
        """
        deposit = request.deposit.job
        assert deposit is not None
        own = (engine, deposit.name)  # others of the pod may have another one already
        shared = self._jobs.get(own)
        if shared is None:

            @asynccontextmanager
            async def hold_and_close(first: JobRequest) -> AsyncIterator[Job]:
                try:
                    async with hold(first) as job:
                        yield job
                finally:
                    left.close()

            shared = SharedJob(request, hold_and_close, deposit)
            self._begin(shared, own, (engine, pod))
        left.together.joins(request.container)
        return shared

    @asynccontextmanager
    async def _member(
        self,
        pod: str,
        shared: SharedJob,
        request: JobRequest,
        anchor: int,
        another: Callable[[], AbstractAsyncContextManager[_AJob]],
    ) -> AsyncIterator[_AJob]:
        """Be a member of a pod.

        Args:
            another: Returns the job as one has it who is not the first.
        """
        shared.enter(request)
        self._anchors[anchor] = (pod, request.container)
        try:
            await shared.settled.wait()
            if shared.job is None:
                raise shared.refusal(request)
            async with AsyncExitStack() as stack:
                job = cast(_AJob, shared.job)
                if request is not shared.first:
                    job = await stack.enter_async_context(another())
                if isinstance(job, SharesNamespaces):
                    stack.enter_context(job.entered())
                yield job
        finally:
            shared.leave(request)
            self._anchors.pop(anchor, None)
            if not shared.members:
                await self._release(shared)

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

    def _begin(self, shared: SharedJob, *keys: tuple[object, str]) -> None:
        """Get a job, and let others find it."""
        for key in keys:
            shared.keys.append(key)
            self._jobs.setdefault(key, shared)
        self._nursery.start_soon(self._keep, shared)

    async def _keep(self, shared: SharedJob) -> None:
        """Keep a job until nobody needs it. Errors go to its members."""

        def lost(ending: Ending) -> None:
            self._forget(shared)
            shared.lost(ending)

        try:
            with shared.scope, OURS.seen():
                request = shared.request(lost, self.keep_longer, self._borrow)
                async with shared.hold(request) as shared.job:
                    shared.settled.set()
                    await trio.sleep_forever()
        except Exception as error:
            shared.failure = error
            if not isinstance(error, ScrunError):
                fault(f"the pod of container {shared.first.container}", error)
            if shared.job is not None:
                lost(taken("scrun-failure", f"job {shared.job.id}: {described(error)}"))
        finally:
            self._forget(shared)
            shared.deposit.end()
            shared.settled.set()
            shared.released.set()

    async def _release(self, shared: SharedJob) -> None:
        """Release a job that nobody needs; the engine has deadlines for that.

        The last member reports what goes wrong, and its record keeps the job.
        """
        self._forget(shared)
        shared.deposit.end()
        known = shared.failure
        shared.scope.cancel()
        with trio.CancelScope(shield=True):
            await shared.released.wait()
        if shared.failure is not None and (shared.job is not None or shared.failure is not known):
            raise shared.failure

    def _forget(self, shared: SharedJob) -> None:
        """Make the next container of the pod request a job of its own."""
        for key in shared.keys:
            if self._jobs.get(key) is shared:
                del self._jobs[key]


def named_anchors(config: Config) -> Iterator[tuple[str, int]]:
    """Yield where config.json has namespaces of other processes, and which these are."""
    for namespace in config.linux.namespaces:
        if found := _NAMESPACE.fullmatch(namespace.path):
            yield found[1], int(found[2])


def _step_request(request: JobRequest, shared: SharedJob) -> JobRequest:
    """Turn a request into one for a step of an existing job.

    Drops all that would size a job, defaults included: srun knows most of it too, and 22.05
    refuses a step that wants more than its job has ("More processors requested than permitted").
    """
    assert shared.job is not None  # for mypy; it is settled
    environment = request.child_env.environment
    wanted = {**request.flags.requests, **request.config_requests, **from_environment(environment)}
    text = f"it joins job {shared.job.id}, in a pod with container {shared.first.container}"
    ignored = [f"{name}={value}" for name, value in wanted.items() if name in _OF_THE_JOB]
    if ignored:
        text += f", which has sized it: {', '.join(ignored)} have no effect"
    request.journal.write("info", text)
    child_env = msgspec.structs.replace(
        request.child_env,
        environment={**environment, **_nothing_of_the_job(), **shared.job.environment},
    )
    return msgspec.structs.replace(
        request,
        child_env=child_env,
        config_requests={
            name: text for name, text in request.config_requests.items() if name not in _OF_THE_JOB
        },
        flags=Flags(notes=request.flags.notes),
        on_job_id=lambda job_id, _: request.on_job_id(job_id, True),
        beside=shared.job,
        job_deposit=shared.deposit,
    )


def _nothing_of_the_job() -> Mapping[str, str]:
    """Override what lower sources may request (`scrun.settings.slurm.request_sources`)."""
    return {
        name: "" if TABLE[name].argument == "required" else "no"  # empty would switch it on
        for name in _OF_THE_JOB
    }
