"""Containers of one pod share one job.

::

    server
    ├── job of a pod            held while it has members
    └── containers
        └── membership          left by the last = the job is given back

Containers of a pod talk over localhost and count on each other's being there, so they have to be
on one node, and are ended together when that is taken away. The first one asks for the job with
all its requests, and the others become further steps of it.

The job is held by a task of the server's, not of the first member's: members come and go in any
order. Whatever is told about it, all of them are told. Every container is a member, and most are
alone: podman's infra container cannot be known by its config.json, as only those that follow name
it (`scrun.core.pods`).
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
import trio

from scrun.core.errors import AllocationRefused, ScrunError, described
from scrun.core.pods import named_pod
from scrun.model.states import FATAL, Ending, taken
from scrun.model.waiting import Waiting, waiting_line
from scrun.oci.config import Config
from scrun.settings.slurm.engine_flags import Flags
from scrun.settings.slurm.requests import TABLE, from_environment
from scrun.supervisor.contracts.engine import Engine, Job, JobRequest
from scrun.supervisor.log.supervisor_log import fault

_SHARING = ("slurm",)  # elsewhere there is nothing to share: this machine is one node
_OF_THE_JOB = [name for name, request in TABLE.items() if request.scope != "step"]
_NAMESPACE = re.compile(r"/proc/([1-9][0-9]{0,9})/ns/[a-z_]{1,32}", re.ASCII)


class _SharedJob:
    """The job of a pod.

    Attributes:
        first: The request that it is asked for with.
        members: Those who wait for it or are in it.
        scope: The holder's; cancelled when the job is not needed any more.
        settled: Set when there is a job, or there will be none.
        gone: Set when it is given back.
        job: It, once it is there.
        failure: Why there is none, or what went wrong with it.
    """

    def __init__(self, first: JobRequest) -> None:
        """Prepare; the first member still has to enter."""
        self.first = first
        self.members: list[JobRequest] = []
        self.scope = trio.CancelScope()
        self.settled = trio.Event()
        self.gone = trio.Event()
        self.job: Job | None = None
        self.failure: Exception | None = None
        self._endings: list[Ending] = []
        self._job_id = ""
        self._news: Waiting | None = None

    def request(self, lost: Callable[[Ending], None]) -> JobRequest:
        """Return the first member's request, with answers for all of them.

        Args:
            lost: Called when the job is taken away.
        """
        return msgspec.structs.replace(
            self.first,
            known=self._known,
            lost=lost,
            waiting=self._waiting,
            suspended=self._suspended,
            ending=lambda: ending_of(self._endings),
        )

    def enter(self, member: JobRequest) -> None:
        """Take a member in, and tell it what the others know."""
        self.members.append(member)
        if self._job_id:
            member.known(self._job_id, True)
        if self._news is not None:
            member.waiting(self._news)

    def leave(self, member: JobRequest) -> None:
        """Let a member go, and keep how it ended."""
        self.members.remove(member)
        if (ending := member.ending()) is not None:
            self._endings.append(ending)

    def lost(self, ending: Ending) -> None:
        """Tell the members that the job was taken away."""
        for member in [*self.members]:
            member.lost(ending)

    def _known(self, job_id: str, owned: bool) -> None:
        """Tell them its number.

        Each has it as its own in its record: when the supervisor dies, all are dead, and whichever
        is deleted first takes what may be left of the job away.
        """
        self._job_id = job_id
        for member in self.members:
            member.known(job_id, owned)

    def _waiting(self, news: Waiting | None) -> None:
        self._news = news
        for member in self.members:
            if news is not None and member is not self.first:  # the engine tells that one
                line = waiting_line(self._job_id, news, explained=True)
                member.journal.write("info", line)
            member.waiting(news)

    def _suspended(self, suspended: bool) -> None:
        for member in self.members:
            member.suspended(suspended)

    def refusal(self, member: JobRequest) -> Exception:
        """Return why a member gets no job."""
        if self.failure is None:  # nobody but the supervisor's end stops the holder before
            return AllocationRefused(f"no job for container {member.container}: scrun ends")
        if member is self.first:
            return self.failure
        return AllocationRefused(
            f"no job for container {member.container}, in a pod with {self.first.container}: "
            f"{described(self.failure)}",
            getattr(self.failure, "reason", "scrun-failure"),
        )


class Pods:
    """The jobs of a supervisor's pods."""

    def __init__(self, nursery: trio.Nursery) -> None:
        """Know no pod yet.

        Args:
            nursery: For the holders of jobs; it has to outlive the containers.
        """
        self._nursery = nursery
        self._jobs: dict[tuple[Engine, str], _SharedJob] = {}
        self._anchors: dict[int, str] = {}

    @asynccontextmanager
    async def allocate(
        self, engine: Engine, request: JobRequest, config: Config, anchor: int
    ) -> AsyncIterator[Job]:
        """Get the job of a container's pod; the last one to leave gives it back.

        Args:
            engine: Where the container will run.
            request: What it asks for.
            config: Its config.json.
            anchor: The pid of its anchor.

        Raises:
            AllocationRefused: With the engine's reason.
            SettingsError: Its requests cannot be fulfilled.
        """
        theirs = request.child_env.environment.get("SLURM_JOB_ID")  # held by somebody else
        if theirs or engine.name not in _SHARING:
            async with engine.allocate(request) as job:
                yield job
            return
        key = (engine, self._pod(request, config))
        shared = self._jobs.get(key)
        if shared is None:
            shared = self._jobs[key] = _SharedJob(request)
            self._nursery.start_soon(self._hold, key, shared)
        shared.enter(request)
        self._anchors[anchor] = key[1]
        try:
            await shared.settled.wait()
            if shared.job is None:
                raise shared.refusal(request)
            if request is shared.first:
                yield shared.job
            else:
                async with engine.allocate(_inside(request, shared)) as job:
                    yield job
        finally:
            shared.leave(request)
            self._anchors.pop(anchor, None)
            if not shared.members:
                await self._give_back(key, shared)

    def _pod(self, request: JobRequest, config: Config) -> str:
        """Name the pod of a container.

        It is that of the container whose namespaces it joins, too: `--network container:ID`. An
        engine takes those from the other one's anchor, the only process that it knows.
        """
        if name := named_pod(config.annotations):
            return name
        for namespace in config.linux.namespaces:
            found = _NAMESPACE.fullmatch(namespace.path)
            if found and (other := self._anchors.get(int(found[1]))):
                return other
        return request.container

    async def _hold(self, key: tuple[Engine, str], shared: _SharedJob) -> None:
        """Hold a job until nobody needs it. Whatever happens is its members' matter."""

        def lost(ending: Ending) -> None:
            self._forget(key, shared)
            shared.lost(ending)

        try:
            with shared.scope:
                async with key[0].allocate(shared.request(lost)) as shared.job:
                    shared.settled.set()
                    await trio.sleep_forever()
        except Exception as error:
            shared.failure = error
            if not isinstance(error, ScrunError):
                fault(f"the pod of container {shared.first.container}", error)
            if shared.job is not None:
                lost(taken("scrun-failure", f"job {shared.job.id}: {described(error)}"))
        finally:
            self._forget(key, shared)
            shared.settled.set()
            shared.gone.set()

    async def _give_back(self, key: tuple[Engine, str], shared: _SharedJob) -> None:
        """Give a job back that nobody needs; the engine has deadlines for that.

        What goes wrong is the last member's to tell, and its record keeps the job.
        """
        self._forget(key, shared)
        known = shared.failure
        shared.scope.cancel()
        with trio.CancelScope(shield=True):
            await shared.gone.wait()
        if shared.failure is not None and (shared.job is not None or shared.failure is not known):
            raise shared.failure

    def _forget(self, key: tuple[Engine, str], shared: _SharedJob) -> None:
        """Let the next one who comes ask for a job of its own."""
        if self._jobs.get(key) is shared:
            del self._jobs[key]


def ending_of(members: Sequence[Ending]) -> Ending | None:
    """Return how a pod has ended, from how its members did, in that order.

    The first failure counts, but not of those that were told to end: as a pod is stopped, its
    infra container is killed, and so may be helpers beside the one that has done the work.
    """
    by_themselves = [one for one in members if one.status - 128 not in FATAL]
    failed = (one for one in by_themselves if one.status)
    return next(failed, None) or next(iter(by_themselves or reversed(members)), None)


def _inside(request: JobRequest, shared: _SharedJob) -> JobRequest:
    """Turn a request into one for a step of a job that is there.

    What would shape a job does not count, not the defaults either: srun has most of it too, and
    22.05 refuses a step that wants more than its job has ("More processors requested than
    permitted").
    """
    assert shared.job is not None  # for mypy; it is settled
    environment = request.child_env.environment
    wanted = {**request.flags.requests, **request.asked, **from_environment(environment)}
    told = f"it joins job {shared.job.id}, in a pod with container {shared.first.container}"
    ignored = [f"{name}={text}" for name, text in wanted.items() if name in _OF_THE_JOB]
    if ignored:
        told += f", which has sized it: {', '.join(ignored)} have no effect"
    request.journal.write("info", told)
    child_env = msgspec.structs.replace(
        request.child_env,
        environment={**environment, **_nothing_of_the_job(), **shared.job.environment},
    )
    return msgspec.structs.replace(
        request,
        child_env=child_env,
        asked={name: text for name, text in request.asked.items() if name not in _OF_THE_JOB},
        flags=Flags(notes=request.flags.notes),
        known=lambda job_id, _: request.known(job_id, True),
        on_first_node=True,
    )


def _nothing_of_the_job() -> Mapping[str, str]:
    """Take back all that a lower source may ask for (`scrun.settings.slurm.request_sources`)."""
    return {
        name: "" if TABLE[name].argument == "required" else "no"  # empty switches those on
        for name in _OF_THE_JOB
    }
