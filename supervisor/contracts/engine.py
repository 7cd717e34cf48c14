"""What an engine is: where a container runs.

The supervisor knows engines by these protocols only. Levels are context managers: leaving one
undoes it, in order, with a deadline. An engine tells by `lost` when the place was taken away
while somebody was in it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import msgspec

from scrun.model.states import Ending
from scrun.model.waiting import Waiting
from scrun.settings.slurm.engine_flags import NO_FLAGS, Flags
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.log.journal import Journal


def _nobody(waiting: Waiting | None) -> None:
    """Tell nobody."""


def _nothing(suspended: bool) -> None:
    """Do nothing about it."""


def _nothing_more() -> None:
    """Do nothing about it."""


def _not_known() -> Ending | None:
    """Know no ending."""
    return None


class JobRequest(msgspec.Struct, frozen=True):
    """What an allocation is asked for.

    Attributes:
        container: The container's id.
        child_env: The surroundings of the children: the environment and umask of `create`.
        directory: `create`'s working directory.
        record: The container's record directory.
        journal: Where messages go.
        known: Called with the job's id as soon as there is one, pending ones included, and
            whether the job ends with the container; both are on disk before the engine goes on.
        lost: Called at most once, when the job is taken away.
        ending: Tells how the container has ended, for a job that has an exit status itself; None
            while nobody knows. To be called when the job is given back.
        asked: What config.json asks for, by SCRUN_* variable; an image may have written it
            (`scrun.settings.slurm.request_sources`).
        flags: What the engine's flags ask for (`scrun.settings.slurm.engine_flags`).
        waiting: Called with what a pending job waits for, whenever that changes; with None when
            it does not wait any more, if it was called before.
        suspended: Called with whether the job's processes stand still, when somebody else than the
            container's user stops them and lets them go on.
        stays: Called when the container has ended, if `Engine.release` is to be called when it is
            deleted, and not before.
        plugin_options: Options of Slurm's own plugins, for the tool that asks for the job.
        on_first_node: Whether a container in somebody else's job runs on that one's first node, as
            the members of a pod do.
    """

    container: str
    child_env: ChildEnv
    directory: str
    record: str
    journal: Journal
    known: Callable[[str, bool], None]
    lost: Callable[[Ending], None]
    ending: Callable[[], Ending | None] = _not_known
    asked: Mapping[str, str] = {}
    flags: Flags = NO_FLAGS
    waiting: Callable[[Waiting | None], None] = _nobody
    suspended: Callable[[bool], None] = _nothing
    stays: Callable[[], None] = _nothing_more
    plugin_options: Sequence[str] = ()
    on_first_node: bool = False


class Step(msgspec.Struct, frozen=True):
    """The container, ready to run.

    Attributes:
        bundle: The staged bundle.
        arguments: config.json's process.args.
        stdio: Descriptors for standard input, output and error, the same three if a terminal.
        terminal: Whether those are a terminal.
        program: The absolute path in the container of what arguments[0] names, "" if it is a
            bare name and could not be looked up.
        program_is_known: Whether the program was seen in the bundle; else the engine should
            look out for the runtime's word that there is none.
        running: Called when the engine knows that the task runs.
        variables: What is added to its environment, config.json's `process.env`; None: taken out.
        submitted: The bundle as its caller knows it, which may be another directory.
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


class Program(msgspec.Struct, frozen=True):
    """One more program for a running container.

    Attributes:
        process: It, as `process` in config.json.
        stdio: Descriptors for standard input, output and error, the same three if a terminal.
        terminal: Whether those are a terminal.
        program_is_known: Whether it was seen in the bundle (see `Step`).
        running: Called when the engine knows that it runs.
    """

    process: Mapping[str, Any]
    stdio: tuple[int, int, int]
    terminal: bool
    program_is_known: bool
    running: Callable[[], None]


class NodeAnswer(msgspec.Struct, frozen=True):
    """What a script on a node has printed.

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
        """Run it to its end; once. Cancelling it ends the program."""
        ...

    async def signal(self, number: int) -> None:
        """Send it a signal.

        Raises:
            EngineError: It was not delivered.
        """
        ...

    def resized(self) -> None:
        """Take notice of a new size of the terminal."""
        ...


Call = Callable[[Sequence[str]], Awaitable[int]]
"""Has the `create` that waits carry out a command; returns the exit status, or the negative number
of the signal that ended it."""


class FirstProcess(Protocol):
    """A container's first process.

    Attributes:
        pid: Its process id.
    """

    pid: int

    @property
    def ending(self) -> Ending | None:
        """How it has ended; a status of -1 is known only to the one who reaped it."""
        ...

    @property
    def over(self) -> bool:
        """Whether it has ended, noticed or not: the engine may know first."""
        ...

    async def start(self) -> None:
        """Let it run the container's program.

        Raises:
            EngineError: The runtime did not; with its reason.
        """
        ...

    async def ended(self) -> Ending:
        """Wait for its end."""
        ...


@runtime_checkable
class Makes(Protocol):
    """What a job has that can make a container without starting its program."""

    def made(
        self, step: Step, call: Call | None = None, console: str | None = None
    ) -> AbstractAsyncContextManager[FirstProcess]:
        """Make the container; in the place of `run`. It is ended when the block is left.

        Args:
            step: It; its descriptors are those of `call`, if there is one.
            call: Makes the runtime a descendant of the engine's monitor, which will be the
                parent of the container's first process; None: that will be ours.
            console: The engine's socket for the terminal, if it has one.

        Raises:
            EngineError: The runtime did not; with its reason.
        """
        ...


class Job(Protocol):
    """An allocation that is held."""

    @property
    def id(self) -> str:
        """The job's id, as the engine writes it."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The job's variables (SLURM_*)."""
        ...

    async def run(self, step: Step) -> Ending:
        """Run the container to its end; once per job.

        Cancelling it ends the container.
        """
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to the running container.

        Raises:
            EngineError: It was not delivered.
        """
        ...

    def resized(self) -> None:
        """Take notice of a new size of the terminal."""
        ...

    async def session(self, program: Program) -> Session:
        """Prepare to run one more program in the running container.

        Raises:
            StateError: The container does not run.
            EngineError: The runtime there has no command for it.
        """
        ...

    async def pause(self, *, resume: bool) -> None:
        """Stop all processes of the running container, or let them go on.

        Raises:
            StateError: The container does not run.
            EngineError: It was not done.
        """
        ...

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        """Run a shell script for each task of the running container, on its node.

        Args:
            script: Makes the script, from the runtime's command that prints the container's
                state; that is "" where it is not known.

        Raises:
            StateError: The container does not run.
            EngineError: The nodes cannot be asked.
        """
        ...

    async def update(self, resources: str, wanted: Sequence[str], limit: str) -> None:
        """Change the limits of the running container.

        Args:
            resources: `linux.resources`, as JSON.
            wanted: What of it is not so already, for messages: `memory.limit=1024`.
            limit: The job's time limit, as salloc(1) takes it for `--time`; "" leaves it.

        Raises:
            EngineError: They cannot be changed; nothing was.
        """
        ...

    async def command(
        self, script: str, output: int, variables: Mapping[str, str] | None = None
    ) -> int:
        """Run a shell script beside the container, on all nodes of the job.

        It runs in the directory of `create`, where the node has that.

        Args:
            script: For `sh -c`.
            output: The descriptor that gets its standard output and error.
            variables: More of its environment, besides the job's.

        Returns:
            The highest exit status; 128+n for a signal.

        Raises:
            EngineError: It could not be started.
        """
        ...


class Engine(Protocol):
    """A place where containers can run."""

    def tidy(self) -> None:
        """Remove what is only of use while there are containers; the supervisor goes."""
        ...

    @property
    def name(self) -> str:
        """The engine's name: "slurm", "local"."""
        ...

    async def target(self, child_env: ChildEnv) -> Target:
        """Tell what a staged bundle has to look like for this engine."""
        ...

    def allocate(self, request: JobRequest) -> AbstractAsyncContextManager[Job]:
        """Get a job; give it back when the block is left.

        Raises:
            AllocationRefused: With the engine's reason.
        """
        ...

    async def release(self, job_id: str, child_env: ChildEnv, record: str) -> None:
        """End a job by its id: one whose supervisor died.

        A job that is gone already is fine.

        Raises:
            EngineError: The engine cannot be asked; the job may still be there.
        """
        ...


@runtime_checkable
class RemembersJobs(Protocol):
    """What an engine may have beside the rest: its jobs can be found without a record."""

    async def jobs_of_the_dead(self, child_env: ChildEnv, root: str) -> list[str]:
        """Find the jobs of supervisors that are known to be dead.

        Args:
            child_env: The surroundings of children.
            root: The root directory that was theirs, on this machine.

        Returns:
            The ids of the jobs, for `Engine.release`.
        """
        ...
