"""The interface of engines, which run containers.

The supervisor uses engines only through these protocols. Levels are context managers: leaving one
undoes it, in order, with a deadline. An engine calls `on_lost` when a job is taken away meanwhile.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol, runtime_checkable

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.model.states import Ending
from scrun.model.waiting import Waiting
from scrun.settings.slurm.request_sources import NO_FLAGS, Flags
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.deleter import Deleter
from scrun.supervisor.contracts.reuse import HeldAllocation
from scrun.supervisor.contracts.staged import OfTask
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.core.deposits import Deposit, no_deposit
from scrun.supervisor.log.journal import Journal


def _ignore_news(news: object) -> None:
    """Ignore it."""


def _ignore() -> None:
    """Ignore it."""


def _unknown_ending() -> Ending | None:
    """Return no ending."""
    return None


def _doubtful() -> bool:
    """Return that nothing is known of how it ended."""
    return False


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
        plugin_options: Options of Slurm's own plugins, for the tool that requests the job.
        plugin_variables: Variables by which they reach its steps. `Step.variables` has them, too,
            which is late for a step that begins before the container is ready.
        reusable: Returns, at the release, whether all that used the job has ended by itself.
        beside: The job that it joins, which the environment has; None: it gets one of its own.
        deposit, job_deposit: Keep what the container, or the job, needs to outlive us.
        joins: The containers whose namespaces config.json names, by the /proc/PID/ns named there.
        task: The task of Slurm's that it belongs to, `JOB.STEP.TASK`; "" for none.
    """

    container: str
    child_env: ChildEnv
    directory: str
    record: str
    journal: Journal
    on_job_id: Callable[[str, bool], None]
    on_lost: Callable[[Ending], None]
    ending: Callable[[], Ending | None] = _unknown_ending
    config_requests: Mapping[str, str] = {}
    flags: Flags = NO_FLAGS
    on_waiting: Callable[[Waiting | None], None] = _ignore_news
    on_suspended: Callable[[bool], None] = _ignore_news
    on_deferred_release: Callable[[], None] = _ignore
    plugin_options: Sequence[str] = ()
    plugin_variables: Mapping[str, str] = {}
    reusable: Callable[[], bool] = _doubtful
    beside: HeldAllocation | None = None
    deposit: Deposit = msgspec.field(default_factory=no_deposit)
    job_deposit: Deposit = msgspec.field(default_factory=no_deposit)
    joins: Mapping[str, str] = {}
    task: str = ""


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


class Program(msgspec.Struct, frozen=True):
    """One more program for a running container.

    Attributes:
        process: The program, as `process` of config.json.
        stdio: Descriptors for standard input, output and error; all the same for a terminal.
        terminal: Whether those are a terminal.
        program_is_known: Whether it was found in the bundle (see `Step`).
        running: Called when the engine knows that it runs.
        deposit: Keeps what it needs to outlive us.
        preserved: More descriptors for it (see `Step`).
    """

    process: Mapping[str, Any]
    stdio: tuple[int, int, int]
    terminal: bool
    program_is_known: bool
    running: Callable[[], None]
    deposit: Deposit = msgspec.field(default_factory=no_deposit)
    preserved: tuple[int, ...] = ()


class NodeAnswer(msgspec.Struct, frozen=True):
    """The output of a script on a node.

    Attributes:
        node: The node's name.
        status: The script's exit status.
        text: Its standard output and error.
    """

    node: str
    status: int
    text: str


class Session(Protocol):
    """One more program in a running container."""

    async def run(self) -> Ending:
        """Run it to its end; call this once. A cancellation ends the program."""
        ...

    async def signal(self, number: int) -> None:
        """Send it a signal.

        Raises:
            EngineError: It was not delivered.
        """
        ...

    def resized(self) -> None:
        """Pass on a new size of the terminal."""
        ...


@runtime_checkable
class KnowsHandlers(Protocol):
    """A session, or a job, that can tell what its program handles; optional."""

    async def handles(self, number: int) -> bool:
        """Tell whether the program handles a signal; False if that is not known.

        Of a container of several tasks, whether any program does.

        Raises:
            EngineError: Its engine has gone.
        """
        ...


class Job(Protocol):
    """An allocation."""

    @property
    def id(self) -> str:
        """The job's id, as the engine writes it."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The job's variables (SLURM_*)."""
        ...

    async def run(self, step: Step) -> Ending:
        """Run the container to its end; once per job. A cancellation ends the container."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to the running container.

        Raises:
            EngineError: It was not delivered.
        """
        ...

    def resized(self) -> None:
        """Pass on a new size of the terminal."""
        ...

    async def session(self, program: Program) -> Session:
        """Prepare to run one more program in the running container.

        Raises:
            StateError: The container does not run.
            EngineError: The runtime there has no command for it.
        """
        ...

    async def pause(self, *, resume: bool) -> None:
        """Pause or resume all processes of the running container.

        Raises:
            StateError: The container does not run.
            EngineError: It could not be done.
        """
        ...

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        """Run a shell script for each task of the running container, on its node.

        Args:
            script: Returns the script, given the runtime's command that prints the container's
                state, or "" if that is unknown.

        Raises:
            StateError: The container does not run.
            EngineError: The nodes cannot be asked.
        """
        ...

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
        ...

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
        ...


@runtime_checkable
class LetsEnd(Protocol):
    """A job whose programs are told to end before they are killed; optional."""

    async def let_end(self) -> None:
        """Wait for the container's end, as long as that may come, when the job is taken away.

        Raises:
            EngineError: It is not known.
        """
        ...


@runtime_checkable
class HandsOn(Protocol):
    """A job that knows whether it hands on what is in `preserved`; optional.

    Attributes:
        hands_on: Whether it does.
    """

    hands_on: bool


Reach = Callable[[trio.socket.SocketType, int], Awaitable[None]]
"""Carries bytes between a client's socket and a port of a container.

It returns when both directions have ended, and raises ScrunError or OSError where the client is to
see a reset.
"""


@runtime_checkable
class Reaches(Protocol):
    """A job that reaches its container's network; optional."""

    def reaching(self) -> AbstractAsyncContextManager[Reach]:
        """Reach it while the block runs.

        Raises:
            StateError: The container does not run.
            EngineError: Its network cannot be entered.
        """
        ...


async def handles(running: object, number: int) -> bool:
    """Tell whether the program of a job or of a session handles a signal; False if unknown."""
    with suppress(EngineError):
        return isinstance(running, KnowsHandlers) and await running.handles(number)
    return False


def hands_on(job: Job) -> bool:
    """Tell whether a job hands more descriptors on to what runs in it."""
    return isinstance(job, HandsOn) and job.hands_on


class Engine(Protocol):
    """Runs containers."""

    def tidy(self) -> None:
        """Remove files that are useful only while the supervisor runs: it is about to end."""
        ...

    @property
    def name(self) -> str:
        """The engine's name: "slurm", "local"."""
        ...

    async def target(self, child_env: ChildEnv) -> Target:
        """Describe where containers will run, for staging."""
        ...

    def allocate(self, request: JobRequest) -> AbstractAsyncContextManager[Job]:
        """Get a job; release it when the block is left.

        Raises:
            AllocationRefused: With the engine's reason.
        """
        ...

    async def release(self, job_id: str, child_env: ChildEnv, record: str) -> None:
        """End a job by its id, because its supervisor died. A job that has ended is not an error.

        Raises:
            EngineError: The engine cannot be reached; the job may still exist.
        """
        ...


@runtime_checkable
class ReleasesFor(Protocol):
    """An engine whose runtime runs hooks at `delete`; optional."""

    async def release_for(
        self, job_id: str, child_env: ChildEnv, record: str, deleter: Deleter
    ) -> None:
        """Release a job, as `Engine.release` does, on behalf of whoever deletes its container.

        Raises:
            EngineError: It may still exist.
        """
        ...


@runtime_checkable
class RemembersJobs(Protocol):
    """An engine whose jobs can be found without a record; optional."""

    async def jobs_of_the_dead(self, child_env: ChildEnv, root: str) -> list[str]:
        """Return the jobs of supervisors that are known to be dead.

        Args:
            child_env: For child processes.
            root: Their root directory, on this machine.

        Returns:
            The ids of the jobs, for `Engine.release`.
        """
        ...
