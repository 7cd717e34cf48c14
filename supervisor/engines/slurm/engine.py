"""The engine that runs containers in Slurm jobs, with Slurm's command-line tools."""

import math
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from functools import partial

import msgspec
import trio

from scrun.cli.pools import AUTO
from scrun.core.errors import EngineUnavailable, ScrunError, SettingsError, shortened
from scrun.core.paths import real_id
from scrun.core.place import job_of, job_variables
from scrun.core.typed import convert
from scrun.model.identity import mark
from scrun.oci.signals import its_end
from scrun.settings.file.load import RuntimeSettings
from scrun.settings.oci_conf.commands import calls_runc, node_runtime
from scrun.settings.oci_conf.parse import OciConf, beside, parse_site, site_content
from scrun.settings.slurm.request_sources import gather
from scrun.settings.slurm.requests import (
    TABLE,
    salloc_arguments,
    srun_arguments,
)
from scrun.settings.slurm.versions import Features, SlurmVersion, features, parse_version
from scrun.settings.slurm_conf import read_slurm_conf
from scrun.supervisor.children.node_scripts import NodeCommands
from scrun.supervisor.children.processes import ChildEnv, answer_of
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.contracts.engine import Engine, Job, JobPlan, JobRequest
from scrun.supervisor.contracts.reuse import LOAN, HeldAllocation, Seat
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.limits import hard_limits
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.slurm.allocation import (
    Allocation,
    AllocationRequest,
    allocated,
    held_again,
    held_anew,
)
from scrun.supervisor.engines.slurm.held_allocation import (
    LeaseRequest,
    SlurmAllocation,
    borrowed_job,
    held,
    lent,
    needs_of,
    seconds_of_limit,
)
from scrun.supervisor.engines.slurm.job import JobParts, SrunJob, spool_mount
from scrun.supervisor.engines.slurm.job_ending import jobs_of_the_dead
from scrun.supervisor.engines.slurm.job_shim import JobShim
from scrun.supervisor.engines.slurm.launching import Launch, Launching
from scrun.supervisor.engines.slurm.layout import (
    SHAPE,
    OneNode,
    StepLayout,
    check,
    first_node,
    layout_of_own_job,
    layout_within,
    nodes_of_salloc,
)
from scrun.supervisor.engines.slurm.pending import Queue
from scrun.supervisor.engines.slurm.room import (
    GPUS_SCRIPT,
    POOL,
    gpus_of_node,
    room_of,
    why_no_node,
)
from scrun.supervisor.engines.slurm.shim_job import ShimJob
from scrun.supervisor.engines.slurm.shim_site import SiteConfs
from scrun.supervisor.engines.slurm.signals import cancel_job
from scrun.supervisor.engines.slurm.tools import CLUSTERS, Tools, check_cluster, other_cluster
from scrun.supervisor.engines.watched import is_deferred
from scrun.supervisor.nodes.beginning import ALONE, Direct
from scrun.supervisor.nodes.link import Sealing
from scrun.supervisor.wire.processor import has_gmac

_ANSWER = 10.0


class SlurmConfiguration(msgspec.Struct, frozen=True):
    """All settings that distinguish one cluster, or one use of it, from another.

    Attributes:
        release_timeout: Seconds that releasing a job may take.
        give_up: Reasons for which a pending job is given up (`[slurm] give_up`).
        host_only: Prefixes of mount sources that its nodes do not have.
        defaults: Requests for every job, by SCRUN_* variable.
        allowed: Requests that config.json may make besides those for resources.
        runtime: Commands of the nodes' runtime that oci.conf has no key for.
        launch: What makes containers on the nodes (`[slurm] launch`).
        linger: Seconds that a job waits for its next container (`[slurm] linger`).
        pool_node: Requests for each node of the pool `auto`, by SCRUN_* variable.
        seal_streams: Whether the bytes of streams are sealed (`[slurm] seal_streams`).
        restore_timeout: Seconds that a shim waits for a successor of ours.
        oci_conf: Which version: an engine reads it once, so another one makes another engine.
    """

    tools: Tools
    release_timeout: float
    give_up: tuple[str, ...]
    host_only: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...]
    allowed: frozenset[str]
    runtime: RuntimeSettings
    launch: Launch = "container"
    linger: float = 0
    pool_node: tuple[tuple[str, str], ...] = ()
    seal_streams: bool = True
    restore_timeout: float = ALONE
    oci_conf: tuple[int, int, int] | None = None


class SlurmEngine(Engine):
    """One cluster."""

    name = "slurm"
    shares_jobs = True
    adopts = True
    hooks_at_delete = False

    def __init__(self, use: SlurmConfiguration, root: str = "") -> None:
        """Create the engine. This reads oci.conf, but asks Slurm nothing.

        The nodes' oci.conf may differ, but sites keep them alike (oci.conf(5)). In `root`, the
        root directory, supervisors share what squeue says.
        """
        self._tools = tools = use.tools
        conf: OciConf | None = None
        content: bytes | None = None
        self._wrong: ScrunError | None = None  # reported when a container is created
        path = beside(tools.conf)
        try:
            content = site_content(path, tools.conf)
            conf = None if content is None else parse_site(content, path)
            self._tools = tools.of_site(conf) if conf else tools
        except ScrunError as error:
            self._wrong = error
        self._use = use
        self._confs = SiteConfs(content, conf, use.runtime)
        self._launching = Launching(use.launch, self._confs)
        self._mount_spool_dir = None if conf is None else conf.mount_spool_dir
        self._without_config = conf is not None and conf.ignore_file_config_json
        self._sealing = Sealing(streams=use.seal_streams, gmac=has_gmac())
        self._commands = NodeCommands(node_runtime(conf, use.runtime))
        self._queue = Queue(tools, use.give_up, root)
        self._pool_node = {**dict(use.defaults), **dict(use.pool_node)}
        self._version: SlurmVersion | None = None
        self._asking = trio.Lock()
        self._unanswered = -math.inf  # when salloc was last asked in vain
        self._why_not = ""

    def tidy(self) -> None:
        """Do nothing: Slurm's engine keeps no files."""

    async def version(self, child_env: ChildEnv) -> SlurmVersion:
        """Return Slurm's version; the first call asks salloc, also for those that come meanwhile.

        Raises:
            EngineUnavailable: salloc does not answer.
        """
        came = trio.current_time()
        async with self._asking:
            if self._version is None and self._unanswered < came:
                await in_thread(_look_for_conf, self._tools.conf)
                command, said = [self._tools.salloc, "--version"], list[str]()
                with trio.move_on_after(_ANSWER):
                    async with messages(said.append) as stderr:
                        env = self._tools.child_env(child_env)
                        status, text = await answer_of(command, env, stderr=stderr)
                    if status < 0:
                        said.append(f"it {its_end(status)}")
                    if text or not said:  # else what it says is the reason
                        self._version = parse_version(text)
                if self._version is None:
                    self._unanswered = trio.current_time()
                    self._why_not = f": {shortened(said[0])}" if said else " does not answer"
            if self._version is None:
                raise EngineUnavailable(f"{self._tools.salloc} --version{self._why_not}")
        return self._version

    async def target(self, child_env: ChildEnv) -> Target:
        uid, gid = real_id("uid"), real_id("gid")
        version = await self.version(child_env)
        forces_rootfs, refused = features(version).forces_rootfs, ""
        conf = self._confs.here
        if forces_rootfs and self._launching.by_slurm and conf is not None and calls_runc(conf):
            refused = (
                f"Slurm {version} gives the OCI runtime a link to it, which runc refuses: name "
                'crun in oci.conf, or set launch = "shim" in [slurm] of scrun.toml'
            )
        return Target(
            elsewhere=True,
            uid=uid,
            gid=gid,
            rootless=uid != 0,
            link_rootfs=forces_rootfs or self._without_config,
            link_refused=refused,
            rlimits=None if self._launching.by_slurm else hard_limits(),
            host_only=self._use.host_only,
            slurm=str(version),
        )

    @asynccontextmanager
    async def allocate(self, request: JobRequest) -> AsyncIterator[Job]:
        """Hold a job for as long as the block lasts.

        Raises:
            AllocationRefused: Slurm gave no job.
            SettingsError: This version of Slurm does not support a request, or oci.conf is not
                valid.
            EngineUnavailable: oci.conf names an srun that does not exist.
        """
        plan = await self.plan(request)
        async with plan.hold(request, None) as held, plan.job(request, held) as job:
            yield job

    async def plan(self, request: JobRequest) -> JobPlan:
        """Decide what to ask for; see `allocate` for what it raises."""
        if self._wrong is not None:
            raise self._wrong
        version = await self.version(request.child_env)
        environment = request.child_env.environment
        wanted, because = self._wanted(request)
        await self._check_cluster(wanted, environment)
        check(wanted, _on_one_node(version, by_srun=self._launching.by_slurm))
        seat = self._seat(request, wanted)
        directory = wanted.pop("SCRUN_WORKING_DIR", "") or request.directory
        name = wanted.pop("SCRUN_JOB_NAME", "")
        own = [f"--comment={mark(os.path.dirname(request.record))}{request.about}"]
        shared: list[str] = []
        (shared if name else own).append(f"--job-name={name or request.job_name}")
        (own if directory == request.directory else shared).append(f"--chdir={directory}")
        shared += [*nodes_of_salloc(wanted), *salloc_arguments(wanted, version.release)]
        shared += request.plugin_options
        options = [*own, *shared]
        needs = needs_of(shared, environment, wanted) if self._use.linger else None
        if features(version).job_container_id:
            options.append(f"--container-id={request.container}")
        of_the_step = {key: value for key, value in wanted.items() if key not in SHAPE}
        step_options = srun_arguments(of_the_step, version.release)
        self._launching.check(wanted, step_options, version.release)
        terms = AllocationRequest(options, directory, because, self._use.release_timeout)
        lease = None if needs is None else LeaseRequest(self._tools, needs)
        return JobPlan(
            partial(self._hold, terms, lease),
            partial(self._job, wanted, version, step_options),
            b"" if lease is None else msgspec.json.encode(lease),
            self._use.linger,
            seat,
        )

    def _seat(self, request: JobRequest, wanted: dict[str, str]) -> Seat | None:
        """Take the pool out of a container's requests."""
        pool = wanted.pop(POOL, "")
        if not pool:
            return None
        own = {**request.config_requests, **request.child_env.environment}
        # defaults are for the pool's jobs, too: none of these would have as much left
        seconds = seconds_of_limit(own.get("SCRUN_TIMELIMIT", "")) or 0
        room, why_not = None, ""
        try:
            room = room_of(wanted)
            if pool == AUTO:
                limit = seconds_of_limit(self._pool_node.get("SCRUN_TIMELIMIT", ""))
                why_not = why_no_node(room, seconds, limit, self._pool_node)
        except SettingsError as error:
            why_not = str(error)
        return Seat(pool, POOL in own, None if why_not else room, why_not, seconds)

    @asynccontextmanager
    async def pool_node(
        self, request: JobRequest, left: Inheritance | None = None
    ) -> AsyncIterator[SlurmAllocation]:
        if self._launching.by_slurm:
            raise SettingsError(
                'a pool needs shims: set launch = "auto" or "shim" in [slurm] of scrun.toml'
            )
        if left is not None and left.facts.get("hello") is not None:
            hold: AbstractAsyncContextManager[HeldAllocation] = self.held_again(request, left)
        else:
            hold = (await self.plan(request)).hold(request, left)
        async with hold as held:
            assert isinstance(held, SlurmAllocation)
            if held.shim.current is None:
                held.gpus = await self._begin_for_pool(request, held)
                await held.ask_for_end(self._tools, request)
                request.job_deposit.note(ends=held.ends, gpus=held.gpus)
            elif left is not None:
                held.ends = left.facts.get("ends") or math.inf  # which JSON does not have
                held.gpus = convert(left.facts.get("gpus", []), list[str])
            held.shim.is_pooled = True
            yield held

    async def _begin_for_pool(self, request: JobRequest, held: SlurmAllocation) -> list[str]:
        """Start a shim with all that the job has on its node; return the GPUs there."""
        options = [f"--cpus-per-task={held.room.processors}"]
        parts = JobParts(
            self._tools, features(await self.version(request.child_env)), self._commands, request,
            held.allocation, StepLayout(), options,
        )  # fmt: skip
        shim = JobShim(parts, self._direct, {}, self._confs)
        held.shim.begin(shim)
        step = shim.step()
        [rank] = await step.ranks()
        request.job_deposit.note(hello=msgspec.to_builtins(step.hello))
        reply = await rank.shim.call("script", script=GPUS_SCRIPT)
        return gpus_of_node(str(reply["text"]))

    @asynccontextmanager
    async def _hold(
        self,
        terms: AllocationRequest,
        lease: LeaseRequest | None,
        request: JobRequest,
        left: Inheritance | None = None,
    ) -> AsyncIterator[SlurmAllocation]:
        """See `JobPlan.hold`. Nothing of the caller's own job is for others.

        `left` is what another supervisor has left, or, without a container, lends us.
        """
        environment = request.child_env.environment
        if isinstance(request.beside, SlurmAllocation):
            yield request.beside
            return
        shared: SlurmAllocation | None = None

        def is_clean() -> bool:
            return shared is not None and shared.is_clean and request.reusable()

        hold: AbstractAsyncContextManager[Allocation]
        if job_id := job_of(environment):
            theirs = job_variables(environment)
            request.on_job_id(job_id, False)
            request.job_deposit.note(job=job_id, environment=theirs)
            hold = nullcontext(Allocation(job_id, theirs))
        elif left is None:
            hold = allocated(self._tools, self._queue, request, terms)
        elif left.container:
            hold = held_anew(self._again(request, left, terms.because), request, left)
        else:
            hold = borrowed_job(request, left, self._held_again, is_clean)
        is_new = not job_id and left is None
        async with (
            hold as allocation,
            held(self._tools, request, allocation, lease if is_new else None) as found,
        ):
            shared = found
            yield found

    @asynccontextmanager
    async def _job(
        self,
        wanted: Mapping[str, str],
        version: SlurmVersion,
        options: list[str],
        request: JobRequest,
        held: HeldAllocation,
    ) -> AsyncIterator[SrunJob | ShimJob]:
        assert isinstance(held, SlurmAllocation)
        environment = request.child_env.environment
        if job_id := job_of(environment):  # with a job of ours, we are there
            allocation = Allocation(job_id, job_variables(environment))
            layout_for = partial(layout_within, wanted, allocation.environment)
            nodes = wanted.get("SCRUN_JOB_NODELIST", "")
            one = _on_one_node(version, by_srun=self._launching.by_slurm)
            if not nodes and layout_for(one).tasks == 1:
                # else srun takes any node: 1 of 4 steps went to another (22.05), and 24.11
                # ignores --relative=0
                nodes = first_node(allocation.environment)
            if nodes:
                options = [*options, f"--nodelist={nodes}"]
            if request.beside is not None:
                request.on_job_id(job_id, False)
        else:
            allocation = held.for_tenant(request)
            layout_for = partial(layout_of_own_job, wanted, allocation.environment)
        job: SrunJob | ShimJob | None = None
        opened = self._launched(wanted, version, options, request, held, allocation, layout_for)
        try:
            async with opened as job:
                yield job
        finally:
            held.sound = held.sound and job is not None and job.sound

    @asynccontextmanager
    async def _launched(
        self,
        wanted: Mapping[str, str],
        version: SlurmVersion,
        options: list[str],
        request: JobRequest,
        held: SlurmAllocation,
        allocation: Allocation,
        layout_for: Callable[[OneNode], StepLayout],
    ) -> AsyncIterator[SrunJob | ShimJob]:
        """Provide a job in which shims make the container, or Slurm does so."""
        what_it_does = features(version)
        layout = layout_for(_on_one_node(version, by_srun=self._launching.by_slurm))
        parts = JobParts(
            self._tools, what_it_does, self._commands, request, allocation, layout, options
        )
        reason = self._launching.known_lack(allocation.environment)
        if not (self._launching.by_slurm or reason):
            asked = {key: text for key, text in wanted.items() if TABLE[key].scope == "step"}
            async with self._by_shims(held, parts, asked) as by_shims:
                reason = await self._launching.lack(allocation.environment, by_shims.shim_step)
                if not reason:
                    yield by_shims
                    return
            if request.beside is None and not held.shim.is_pooled:
                await held.shim.end()
        by_slurm = SrunJob(parts)
        by_slurm.spool_mount = await in_thread(self._spool_mount, what_it_does, allocation)
        if reason:
            layout_for(_on_one_node(version, by_srun=True))
            await self._launching.fall_back(
                by_slurm, request.journal, wanted, version.release, reason
            )
        else:
            await self._launching.need_oci_conf(by_slurm)
        yield by_slurm

    @asynccontextmanager
    async def _by_shims(
        self, held: SlurmAllocation, parts: JobParts, asked: Mapping[str, str]
    ) -> AsyncIterator[ShimJob]:
        """Provide shims for a container: one for each of its tasks, or the one of its job."""
        own = JobShim(parts, self._direct, asked, self._confs)
        shared = held.shim.opened(own, beside=parts.request.beside is not None)
        async with own.opened() if own.is_gathered else shared as shims:
            yield ShimJob(parts, shims)

    @asynccontextmanager
    async def adopted(self, request: JobRequest, found: Inheritance) -> AsyncIterator[Job]:
        held = request.beside
        assert isinstance(held, SlurmAllocation)
        if is_deferred(found):
            yield SrunJob(await self._parts_of(request, held.allocation, found), found)
        else:
            assert found.job is not None
            assert held.shim.current is not None
            parts = await self._parts_of(request, held.allocation, found.job)
            yield ShimJob(parts, held.shim.current, found)

    @asynccontextmanager
    async def held_again(
        self, request: JobRequest, left: Inheritance
    ) -> AsyncIterator[SlurmAllocation]:
        async with (
            self._again(request, left) as allocation,
            held(self._tools, request, allocation) as again,
        ):
            if left.facts.get("hello") is not None:
                parts, asked = await self._parts_of(request, allocation, left), left.facts["asked"]
                again.shim.begin(JobShim(parts, self._direct, asked, self._confs, left))
            yield again

    async def _parts_of(
        self, request: JobRequest, allocation: Allocation, left: Inheritance
    ) -> JobParts:
        """Return the parts of a job whose step has the inherited layout and options."""
        layout = convert(left.facts["layout"], StepLayout)
        what_it_does = features(await self.version(request.child_env))
        return JobParts(
            self._tools, what_it_does, self._commands, request, allocation, layout,
            left.facts["options"],
        )  # fmt: skip

    def _held_again(
        self, request: JobRequest, found: Inheritance, because: str = ""
    ) -> AbstractAsyncContextManager[Allocation]:
        terms = AllocationRequest((), "", because, self._use.release_timeout)
        return held_again(self._tools, self._queue, request, terms, found)

    def _again(
        self, request: JobRequest, found: Inheritance, because: str = ""
    ) -> AbstractAsyncContextManager[Allocation]:
        hold = partial(self._held_again, because=because)
        return lent(request, found, hold) if LOAN in found.fds else hold(request, found)

    async def _check_cluster(self, wanted: dict[str, str], environment: Mapping[str, str]) -> None:
        variable, name = other_cluster(wanted, environment)
        if variable:
            check_cluster(variable, name, await in_thread(self._slurm_conf))
            wanted.pop(CLUSTERS, None)

    def _direct(self) -> Direct:
        """Return what shims need to know of slurm.conf(5), and whether they may connect to us."""
        conf = self._slurm_conf()
        encrypted = conf.get("tlstype", "tls/none") not in ("", "none", "tls/none")
        found = Direct(not encrypted, conf.get("srunportrange"), self._use.restore_timeout)
        # proctrack/cgroup and pgid signal a step's tasks, this one their descendants, too
        reaches_all = conf.get("proctracktype", "").endswith("linuxproc")
        kill_wait = conf.get("killwait", "")
        return found._replace(
            reaches_all=reaches_all,
            sealing=self._sealing,
            kill_wait=float(kill_wait) if kill_wait.isdecimal() else found.kill_wait,
        )

    def _spool_mount(self, what_it_does: Features, held: Allocation) -> str:
        nodes = held.environment.get("SLURM_JOB_NODELIST", "[")
        return spool_mount(what_it_does, self._mount_spool_dir, self._slurm_conf(), nodes)

    def _slurm_conf(self) -> dict[str, str]:
        """Return the settings of slurm.conf that can be read; this reads files."""
        with suppress(SettingsError):
            if self._tools.conf is not None:
                return read_slurm_conf(self._tools.conf)
        return {}

    def _wanted(self, request: JobRequest) -> tuple[dict[str, str], str]:
        """Merge the requests of all sources; log those that are ignored.

        Returns them, and text about those that come from the engine's flags.
        """
        environment = request.child_env.environment
        use = self._use
        wanted = gather(
            environment, request.config_requests, dict(use.defaults), request.flags, use.allowed
        )
        for note in wanted.notes:
            request.journal.write("info", note)
        return dict(wanted.requests), wanted.because

    async def release(self, job_id: str, child_env: ChildEnv, record: str) -> None:
        await cancel_job(self._tools, self._tools.child_env(child_env), job_id)

    async def jobs_of_the_dead(self, child_env: ChildEnv, root: str) -> list[str]:
        return await jobs_of_the_dead(self._tools, self._tools.child_env(child_env), root)


def _on_one_node(version: SlurmVersion, *, by_srun: bool) -> OneNode:
    """Return what is to be on one node: srun may know more than shims about that."""
    tasks = features(version).tasks_per_node if by_srun else None
    return OneNode(tasks, f"{version.major}.{version.minor:02}")


def _look_for_conf(path: str | None) -> None:
    """Look for the slurm.conf that is named: Slurm's tools look for it for a minute. Blocks."""
    try:
        if path is not None:
            os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise EngineUnavailable(
            f"{path} does not exist: correct --slurm-conf, conf in [slurm] of "
            "scrun.toml, or SLURM_CONF"
        ) from None
    except (OSError, ValueError):  # Slurm's tools say it
        pass
