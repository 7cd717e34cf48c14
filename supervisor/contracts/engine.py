"""The interface of engines, which run containers.

The supervisor uses engines only through these classes; whatever is not abstract is optional.
Levels are context managers: leaving one undoes it, in order, with a deadline.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from typing import Any, Literal

import msgspec

from scrun.core.errors import EngineError
from scrun.model.states import Ending
from scrun.model.usage import Usage
from scrun.model.waiting import Waiting
from scrun.settings.slurm.request_sources import NO_FLAGS, Flags
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.deleter import Deleter
from scrun.supervisor.contracts.first_process import Call, FirstProcess
from scrun.supervisor.contracts.networks import Networks, OfNetworks
from scrun.supervisor.contracts.program import Files as Files
from scrun.supervisor.contracts.program import Program as Program
from scrun.supervisor.contracts.reuse import HeldAllocation, PoolAllocation, Seat
from scrun.supervisor.contracts.staged import OfTask
from scrun.supervisor.contracts.target import ImageFile, Mounting, Target
from scrun.supervisor.contracts.target import NodeAnswer as NodeAnswer
from scrun.supervisor.core.deposits import Deposit, no_deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.log.journal import Journal


class JobRequest(msgspec.Struct, frozen=True):
    """The request for an allocation.

    Attributes:
        container: The container's id.
        child_env: The environment and umask of `create`, for child processes.
        directory: `create`'s working directory.
        record: The container's record directory.
        journal: Where messages go.
        on_job_id: Called with the job's id as soon as it is known, even if the job is pending, and
            whether the job ends with the container; both are on disk when it returns.
        on_lost: Called at most once, when the job is taken away.
        ending: Returns how the container ended, for a job that has an exit status itself; None
            if unknown. To be called when the job is released.
        config_requests: The requests of config.json, by SCRUN_* variable; an image may have
            written them (`scrun.settings.slurm.request_sources`).
        flags: The requests of the engine's flags (`scrun.settings.slurm.request_sources`).
        on_waiting: Called with what a pending job waits for, whenever that changes; with None when
            the wait is over, if it was called before.
        on_suspended: Called with True when somebody other than the container's user suspends the
            job's processes, and with False when they resume.
        on_deferred_release: Called at the container's end, if `Engine.release` waits for `delete`.
        on_output_lost: Called when output can no longer be written, as on a full disk.
        plugin_options: Options of Slurm's own plugins, for the tool that requests the job.
        plugin_variables: Variables by which they reach its steps. `Step.variables` has them, too,
            which is late for a step that begins before the container is ready.
        reusable: Returns, at the release, whether all that used the job has ended by itself.
        beside: The job that it joins, which the environment has; None: it gets one of its own.
        deposit, job_deposit: Keep what the container, or the job, needs to outlive us.
        joins: The containers whose namespaces config.json names, by the /proc/PID/ns named there.
        task: The task of Slurm's that it belongs to, `JOB.STEP.TASK`; or "".
        job_name: What its job is called, unless its requests say that.
        about: Words for the job's comment, after the engine's own; each with a leading blank.
        network: Instead of an engine's here: "own", "node" (its node's), "late" (see Job), or "".
    """

    container: str
    child_env: ChildEnv
    directory: str
    record: str
    journal: Journal
    on_job_id: Callable[[str, bool], None]
    on_lost: Callable[[Ending], None]
    ending: Callable[[], Ending | None] = lambda: None
    config_requests: Mapping[str, str] = {}
    flags: Flags = NO_FLAGS
    on_waiting: Callable[[Waiting | None], None] = lambda news: None
    on_suspended: Callable[[bool], None] = lambda news: None
    on_deferred_release: Callable[[], None] = lambda: None
    on_output_lost: Callable[[str], None] = lambda reason: None
    plugin_options: Sequence[str] = ()
    plugin_variables: Mapping[str, str] = {}
    reusable: Callable[[], bool] = lambda: False
    beside: HeldAllocation | None = None
    deposit: Deposit = msgspec.field(default_factory=no_deposit)
    job_deposit: Deposit = msgspec.field(default_factory=no_deposit)
    joins: Mapping[str, str] = {}
    task: str = ""
    job_name: str = "scrun"
    about: str = ""
    network: Literal["", "own", "late", "node"] = ""


class Step(msgspec.Struct, frozen=True):
    """A container that is ready to run.

    Attributes:
        bundle: The staged bundle.
        arguments: config.json's process.args.
        stdio: Descriptors for standard input, output and error; all the same for a terminal.
        terminal: Whether those are a terminal.
        program: The absolute path of arguments[0] in the container; "" if it is a bare name and
            could not be looked up.
        program_is_known: Whether the program was found in the bundle; if not, the engine should
            watch for the runtime's error that it does not exist.
        running: Called when the engine knows that the task runs.
        variables: Added to its environment, config.json's `process.env`; None removes one.
        submitted: The bundle as its caller knows it, which may be another directory.
        tasks: What is each task's own; empty: they have all the same.
        preserved: More descriptors for it, from 3 on, if its job `hands_on` any. A runtime
            that `create` calls has its own.
        networks: What it has of those of its engine's.
        sockets: Where it mounts sockets of its engine's; see `reach_sockets`.
    """

    bundle: str
    arguments: Sequence[str]
    stdio: tuple[int, int, int]
    terminal: bool
    program: str
    program_is_known: bool
    running: Callable[[], None]
    variables: Mapping[str, str | None] = {}
    submitted: str = ""
    tasks: Sequence[OfTask] = ()
    preserved: tuple[int, ...] = ()
    networks: Networks = Networks()
    sockets: tuple[str, ...] = ()


class Session(ABC):
    """One more program in a running container."""

    @abstractmethod
    async def run(self) -> Ending:
        """Run it to its end; call this once. A cancellation ends the program."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send it a signal; raises EngineError if it was not delivered."""

    @abstractmethod
    def resized(self) -> None:
        """Pass on a new size of the terminal."""

    async def handles(self, number: int) -> bool:
        """Tell whether the program handles a signal; False: unknown. Raises EngineError."""
        return False


class Job(OfNetworks, ABC):
    """An allocation.

    Attributes:
        launch: What launches its containers, `shim` or `container`, as in the setting; or "".
        is_beside_us: Whether its running container has the very network that this process has.
        hands_on: Whether it hands on what is in `preserved`.
        copies_files: Whether it copies files of its container (see `Program`).
        serves_files: Whether `Program.files` may be `SERVED`.
        lets_end: Whether its programs are told to end before they are killed.
        creates_first: Whether it can create a container without starting its program.
        below_engine: Whether an engine's monitor can then be the parent of its first process.
        mounts_images: Whether it can mount a root file system, and images, files of squashfs.
    """

    launch: str = ""
    is_beside_us: bool = False
    hands_on: bool = False
    copies_files: bool = False
    serves_files: bool = False
    lets_end: bool = False
    creates_first: bool = False
    below_engine: bool = False
    mounts_images: bool = False

    @property
    @abstractmethod
    def id(self) -> str:
        """The job's id, as the engine writes it."""

    @property
    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """The job's variables (SLURM_*)."""

    @property
    def usage(self) -> Usage | None:
        """What its container has used, when that has ended, as far as it is known."""
        return None

    @abstractmethod
    async def run(self, step: Step) -> Ending:
        """Run the container to its end; once per job. A cancellation ends the container."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to the running container; raises EngineError if it was not delivered."""

    @abstractmethod
    def resized(self) -> None:
        """Pass on a new size of the terminal."""

    @abstractmethod
    async def session(self, program: Program) -> Session:
        """Prepare to run one more program in the running container.

        Raises:
            StateError: The container does not run.
            EngineError: The runtime there has no command for it.
        """

    @abstractmethod
    async def pause(self, *, resume: bool) -> None:
        """Pause or resume all processes of the running container.

        Raises StateError if the container does not run, and EngineError if it could not be done.
        """

    @abstractmethod
    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        """Run a shell script for each task of the running container, on its node.

        `script` is given the runtime's command that prints the container's state, or "" if that is
        unknown. Raises StateError if the container does not run, and EngineError if the nodes
        cannot be asked.
        """

    @abstractmethod
    async def update(self, resources: str, wanted: Sequence[str], limit: str) -> None:
        """Change the limits of the running container.

        Args:
            resources: `linux.resources`, as JSON.
            wanted: What is not as in config.json, for messages: `memory.limit=1024`. It may be
                nothing where an earlier call has changed what this one sets back.
            limit: The job's time limit, in the format of salloc's `--time`; "" keeps it.

        Raises:
            EngineError: They cannot be changed; none was.
        """

    @abstractmethod
    async def command(
        self, script: str, output: int, variables: Mapping[str, str] | None = None
    ) -> int:
        """Run a shell script beside the container, on all nodes of the job.

        It runs in the directory of `create`, if the node has that.

        Args:
            script: For `sh -c`.
            output: The descriptor for its standard output and error.
            variables: Environment variables in addition to the job's.

        Returns:
            The highest exit status; 128+n for a signal.

        Raises:
            EngineError: It could not be started.
        """

    async def handles(self, number: int) -> bool:
        """Tell whether a program of its handles a signal; False: unknown. Raises EngineError."""
        return False

    async def let_end(self) -> None:
        """Wait for the container's end, as long as that may come, when the job is taken away.

        Raises EngineError if it is not known.
        """
        return

    # The container and its program, one after the other: if it `creates_first`

    def created(
        self, step: Step, call: Call | None = None, console: str | None = None
    ) -> AbstractAsyncContextManager[FirstProcess]:
        """Create the container, instead of `run`. It is ended when the block is left.

        Args:
            step: The container; its descriptors are those of `call`, if there is one.
            call: Runs the runtime below the engine's monitor, which becomes the parent of the
                container's first process; None: that will be our child.
            console: The engine's socket for the terminal, if it has one.

        Raises:
            EngineError: The runtime failed; with its reason.
        """
        raise NotImplementedError

    # A container that outlives its supervisor: if `Engine.adopts`

    def keep(self, step: Step) -> bool:
        """Keep what a container that is only `run` needs to outlive us, if the job can do that."""
        return False

    def resumed(self) -> AbstractAsyncContextManager[FirstProcess]:
        """Go on with a container of another supervisor's. It is ended when the block is left."""
        raise NotImplementedError

    async def resumed_session(
        self, found: Inheritance, deposit: Deposit, running: Callable[[], None]
    ) -> Session:
        """Go on with a program of `exec` in such a container; `resumed` waits for it.

        The deposit keeps further what was found. `running` is called when it can get signals.
        """
        raise NotImplementedError

    # Other containers in the job

    def entered(self) -> AbstractContextManager[None]:
        """Let the others know of the container while the block runs."""
        return nullcontext()

    async def neighbours(self) -> Mapping[str, Mapping[str, Any]]:
        """Wait until the containers of `JobRequest.joins` are created or have ended.

        Returns the config.json of each that the nodes have, by its directory there.
        """
        return {}

    # Nodes, which are other machines

    @property
    def separate_tasks(self) -> int | None:
        """How many tasks can have mounts of their own; 0: all have the same, on several nodes.

        None: there are no nodes that `ask` can ask.
        """
        return None

    @property
    def mount_points(self) -> Sequence[str]:
        """Where, or below which, nodes mount something that config.json does not have."""
        return ()

    @property
    def mounted(self) -> set[Any]:
        """Of what kinds the node has mounted overlays: the stager's notes, in its own words."""
        return set()

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        """Run a shell script for each of `separate_tasks` on its node, before the container runs.

        If all have the same mounts, the one for task 0 is run on each node. Returns their standard
        output and error; raises EngineError if one could not be run.
        """
        raise NotImplementedError

    async def mount(self, mounting: Mounting) -> str:
        """Mount them on the nodes, for each task, until the container ends or `unmount`.

        `ask` and the container find them there, nobody else. Returns by what images are mounted.

        Raises:
            OthersThere: Directories are others on a node; nothing is mounted.
            NotThere: A node does not see an image; likewise.
            RootRefused: A node's kernel refuses the overlay; likewise.
            EngineError: They cannot be mounted.
        """
        raise NotImplementedError

    async def send(
        self, images: Sequence[ImageFile], limit: int, say: Callable[[int, int], None]
    ) -> list[list[str]]:
        """Bring images to the nodes' own disks, where they stay until `unmount`, and longer.

        Args:
            limit: The most bytes of all images on a node; 0: any number.
            say: Called with how many bytes have been sent, and how many there will be.

        Returns:
            Their paths, for each task.

        Raises:
            EngineError: They could not be sent.
        """
        raise NotImplementedError

    async def unmount(self) -> None:
        """Undo `mount` and `send`, if the container has not done so."""
        return


async def handles(running: Job | Session, number: int) -> bool:
    """Tell whether the program of a job or of a session handles a signal; False if unknown."""
    with suppress(EngineError):
        return await running.handles(number)
    return False


class JobPlan(msgspec.Struct, frozen=True):
    """How one container gets a job, before that is requested.

    Attributes:
        hold: Holds an allocation while the block runs: a new one; or what another supervisor
            lends us (`Borrow`), or has left, in which it made nothing. Raises AllocationRefused
            with the engine's reason.
        job: Provides an allocation for the container of this plan.
        needs: What it asks of its job, in the words of the engine, for `HeldAllocation.serves` of
            this supervisor or another; empty: only a new job will do.
        linger: Seconds for which its job may wait for the next container; 0: it does not wait.
        seat: The pool in which it is to run; None: it has a job of its own.
    """

    hold: Callable[[JobRequest, Inheritance | None], AbstractAsyncContextManager[HeldAllocation]]
    job: Callable[[JobRequest, HeldAllocation], AbstractAsyncContextManager[Job]]
    needs: bytes = b""
    linger: float = 0
    seat: Seat | None = None


class Engine(ABC):
    """Runs containers.

    Attributes:
        shares_jobs: Whether several containers may use one of its jobs.
        adopts: Whether its containers outlive the supervisor.
        hooks_at_delete: Whether `release_for` has to know who deletes a container.
    """

    shares_jobs: bool = False
    adopts: bool = False
    hooks_at_delete: bool = True

    @abstractmethod
    def tidy(self) -> None:
        """Remove files that are useful only while the supervisor runs: it is about to end."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The engine's name: "slurm", "local"."""

    @abstractmethod
    async def target(self, child_env: ChildEnv) -> Target:
        """Describe where containers will run, for staging."""

    @abstractmethod
    def allocate(self, request: JobRequest) -> AbstractAsyncContextManager[Job]:
        """Get a job; release it when the block is left. AllocationRefused has the reason."""

    @abstractmethod
    async def release(self, job_id: str, child_env: ChildEnv, record: str) -> None:
        """End a job by its id, because its supervisor died. A job that has ended is not an error.

        Raises:
            EngineError: The engine cannot be reached; the job may still exist.
        """

    async def release_for(
        self, job_id: str, child_env: ChildEnv, record: str, deleter: Deleter
    ) -> None:
        """Release a job for whoever deletes its container, where hooks run at `delete`.

        Raises EngineError if it may still exist.
        """
        await self.release(job_id, child_env, record)

    async def jobs_of_the_dead(self, child_env: ChildEnv, root: str) -> list[str] | None:
        """Return the jobs of supervisors of a root directory here that are known to be dead.

        Those are ids, for `release`; None: they cannot be found without a record.
        """
        return None

    async def plan(self, request: JobRequest) -> JobPlan:
        """Decide what to ask for, if the engine `shares_jobs`.

        Raises:
            SettingsError: A request cannot be fulfilled.
            EngineUnavailable: The engine cannot be used.
        """
        raise NotImplementedError

    def held_again(
        self, request: JobRequest, left: Inheritance
    ) -> AbstractAsyncContextManager[HeldAllocation]:
        """Hold a shared job that another supervisor has held, with the containers in it.

        What it has left for the job is owned from now on.
        """
        raise NotImplementedError

    def pool_node(
        self, request: JobRequest, left: Inheritance | None = None
    ) -> AbstractAsyncContextManager[PoolAllocation]:
        """Hold a job of one node for a pool, if the engine `shares_jobs`; raises as `allocate`.

        `left` is what another supervisor has left for the job; owned from now on.
        """
        raise NotImplementedError

    def adopted(self, request: JobRequest, found: Inheritance) -> AbstractAsyncContextManager[Job]:
        """Hold a job that another supervisor has held; release it when the block is left.

        Args:
            request: The request for the job, as the other has made it; with `beside`, for a
                container in that job.
            found: What the other has left for the container. If there is `found.job`, that is
                owned from now on, unless there is `beside`; and `Job.resumed` waits for all
                containers of `found.job.together`.
        """
        raise NotImplementedError
