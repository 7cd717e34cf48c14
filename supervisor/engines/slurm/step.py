"""A step of srun, connected to the standard streams of a container or of an exec."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.settings.file.load import Level
from scrun.supervisor.children.persistent import (
    foreign_process,
    inherited_child,
    persistent_child,
    status_of,
)
from scrun.supervisor.children.processes import Child, ChildEnv
from scrun.supervisor.children.pumps import (
    MEMORY,
    PIPE,
    Transcript,
    can_be_opened_again,
    cat_to,
    messages,
    recorded,
    tee,
)
from scrun.supervisor.children.terminal import give_a_size
from scrun.supervisor.core.deposits import STEP, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.job_state import StepState
from scrun.supervisor.engines.slurm.signals import signal_step
from scrun.supervisor.engines.slurm.tools import Tools, lean_srun
from scrun.supervisor.log.journal import Journal

_STEP_ENDS = 5.0
_STEP_STARTS = 10.0
_KILL_BY_CONTROLLER = 3.0
_RUNTIME_LISTENS = 1.0
_LAST_OUTPUT = 2.0

_SRUN = "srun"
_CAT, _SAID = f"{STEP}cat", f"{STEP}said."


class StepStreams(msgspec.Struct, frozen=True):
    """The streams of a step.

    Attributes:
        fds: Descriptors for standard input, output and error; three times the same terminal.
        listen: Whether to look for the runtime's message that the program cannot be run.
        far_terminal: Whether the program has another terminal, which the runtime on the node makes
            and keeps at the size of Slurm's.
    """

    fds: tuple[int, int, int]
    terminal: bool
    listen: bool
    far_terminal: bool = False


class SrunStep:
    """A run of srun, with its messages.

    Attributes:
        on_message: Called after each message of srun's.
    """

    def __init__(
        self,
        tools: Tools,
        child_env: ChildEnv,
        journal: Journal,
        tasks: int = 1,
        slowed: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`slowed`: called after each message with whether slurmctld slows srun down."""
        self.state = StepState(tasks)
        self.asked_to_kill = False
        self.on_message: Callable[[], None] = lambda: None
        self._tasks = tasks
        self._tools = tools
        self._child_env = child_env
        self._journal = journal
        self._slowed = slowed
        self._started = trio.Event()
        self._sees_sizes = trio.Event()
        self._srun: Child | None = None

    @property
    def ended(self) -> bool:
        return self._srun is not None and self._srun.ended

    @property
    def runs_now(self) -> bool:
        return self._started.is_set() and not self.ended

    def renew(self) -> None:
        """Forget a run whose tasks never ran, so that `run` can be called again."""
        self.state = StepState(self._tasks)
        self._started = trio.Event()
        self._srun = None

    async def run(
        self,
        options: Sequence[str],
        program: Sequence[str],
        streams: StepStreams,
        running: Callable[[], None],
        variables: Mapping[str, str] | None = None,
        deposit: Deposit | None = None,
        *,
        leashed: bool = False,
    ) -> int:
        """Run srun to its end; return its exit status. `state` has those of the tasks.

        Args:
            running: Called when its tasks run.
            deposit: Keeps what srun needs to outlive us; without one it ends with us.
            leashed: Whether nothing but a supervisor would end it, not even the end of its job.
        """
        async with (
            self._said(partial(self._feed, running), deposit) as own,
            self._standard_error(streams, deposit) as error,
        ):
            words = [*self._tools.srun, "-v", *options]
            if streams.terminal:
                words.append("--pty")
                give_a_size(streams.fds[0])
            if error is not None:
                words.append(f"--error=/proc/self/fd/{error}")
            words += ["--", *program]
            # --export decides which of them the program gets
            child_env = lean_srun(self._child_env.with_more(variables or {}))
            async with persistent_child(
                words,
                child_env,
                deposit,
                _SRUN,
                stdio=(*streams.fds[:2], own),
                pass_fds=() if error is None else (error,),
                grace=_STEP_ENDS,
                leashed=leashed,
            ) as srun:
                self._srun = srun
                status = await self._end_of(srun, streams)
        self._started.set()  # nobody has to wait for it any more
        return status

    async def _end_of(self, srun: Child, streams: StepStreams | None) -> int:
        async with unwrapped() as nursery:
            if streams is not None and streams.terminal:
                nursery.start_soon(self._tell_the_size, streams.far_terminal)
            status = await srun.wait()
            nursery.cancel_scope.cancel()
        return status

    def _said(
        self, feed: Callable[[str], None], deposit: Deposit | None
    ) -> AbstractAsyncContextManager[int]:
        """Yield srun's standard error, for its own messages."""
        if deposit is None:
            return messages(feed)

        def hold(fds: Mapping[str, int]) -> None:
            deposit.hold({f"{_SAID}{name}": fd for name, fd in fds.items()})

        return recorded(feed, hold)

    def _feed(self, running: Callable[[], None], line: str) -> None:
        level: Level = "error" if self.state.feed(line) else "debug"
        self._journal.write("info" if self.state.slowed else level, line)
        self._slowed(self.state.slowed)
        if self.state.started and not self._started.is_set():
            self._started.set()
            running()
        self.on_message()

    async def run_on(
        self,
        found: Inheritance,
        running: Callable[[], None] = lambda: None,
        streams: StepStreams | None = None,
        task_status: trio.TaskStatus[bool] = trio.TASK_STATUS_IGNORED,
    ) -> int:
        """Wait for the end of an srun that another supervisor has started; return its exit status.

        That is 1 if it cannot be known (before Linux 6.15). When `state` is what srun has said so
        far, `task_status` is told whether its tasks run, or ran. `streams`: those that srun has
        got; None: no terminal.
        """
        transcript = Transcript(found.take(f"{_SAID}{PIPE}"), found.take(f"{_SAID}{MEMORY}"))
        for line in transcript.before:
            self.state.feed(line)
        if self.state.started:
            self._started.set()
        async with (
            self._cat_of(found),
            transcript.received(partial(self._feed, running)),
            inherited_child(found, _SRUN, grace=_STEP_ENDS) as srun,
        ):
            self._srun = srun
            task_status.started(self._started.is_set())
            await self._end_of(srun, streams)
            status = await status_of(srun.pid, srun.pidfd)
        self._started.set()
        return 1 if status is None else os.waitstatus_to_exitcode(status)

    @asynccontextmanager
    async def _cat_of(self, found: Inheritance) -> AsyncIterator[None]:
        """Wait for what copies the standard error; a cancellation waits only briefly."""
        if _CAT not in found.fds:
            yield
            return
        async with foreign_process(found.facts["cat"], found.take(_CAT), "cat", grace=0) as cat:
            try:
                yield
                await cat.wait()
            finally:
                with trio.move_on_after(_LAST_OUTPUT, shield=True):
                    await cat.wait()

    @asynccontextmanager
    async def _standard_error(
        self, streams: StepStreams, deposit: Deposit | None
    ) -> AsyncIterator[int | None]:
        """Yield the descriptor that srun opens as the program's standard error.

        srun's own messages always go to its descriptor 2, so the program needs another one, which
        srun opens by its path under /proc.
        """
        error = streams.fds[2]
        if streams.terminal:
            yield None
        elif streams.listen:
            async with tee(error, self._child_env, self.state.feed_stderr) as pipe:
                yield pipe
        elif can_be_opened_again(error):
            yield error
        else:
            hold = None
            if deposit is not None:

                def hold(cat: Child) -> None:
                    deposit.hold({_CAT: cat.pidfd}, cat=cat.pid)

            async with cat_to(error, self._child_env, hold) as pipe:
                yield pipe

    async def _tell_the_size(self, far_terminal: bool) -> None:
        """Make srun read the terminal's size, which docker sets while the step starts.

        A runtime that makes the terminal learns of a change by a signal of the kernel, which it
        misses in its first moments. No event tells when those are over, and setting the same size
        again changes nothing. So until then Slurm's terminal keeps its first size.
        """
        await self._started.wait()
        if far_terminal:
            await trio.sleep(_RUNTIME_LISTENS)
        self._sees_sizes.set()
        self.resized()

    async def runs(self) -> bool:
        """Wait until its tasks run; return False if they have ended.

        Before that srun has no step to signal, and loses signals itself. Raises EngineError if
        `run` was not called yet.
        """
        if self._srun is None:
            raise EngineError("the container is not running")
        with trio.move_on_after(_STEP_STARTS):
            await self._started.wait()
        return not self._srun.ended

    async def kill(self) -> None:
        self.asked_to_kill = True
        with trio.move_on_after(_KILL_BY_CONTROLLER):
            try:
                await signal_step(self._tools, self._child_env, self.state.step_id, signal.SIGKILL)
                return
            except EngineError as error:
                self._journal.write("verbose", str(error))
        # slurmctld does not answer, but srun can tell slurmstepd directly
        if self._srun is not None:
            self._srun.signal(signal.SIGTERM)

    async def signal_all(self, number: int) -> None:
        """Send a signal to all of its processes; raises EngineError if it was not delivered."""
        await signal_step(self._tools, self._child_env, self.state.step_id, number)

    def resized(self) -> None:
        """Tell srun that the terminal has a new size.

        A signal before the tasks run would interrupt srun while it waits for the connection on
        which it passes sizes on, and then it never does (22.05: 3 of 5 terminals of docker, which
        sets their size early).
        """
        if self._srun is not None and self._sees_sizes.is_set():
            self._srun.signal(signal.SIGWINCH)
