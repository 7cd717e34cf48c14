"""One container on this machine: what is done with it, whichever way it is run."""

import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
import trio

from scrun.core.errors import EngineError, StateError, shortened
from scrun.model.states import FATAL, Ending, taken
from scrun.supervisor.children.node_scripts import signal_script
from scrun.supervisor.children.processes import Child, child, run_shell
from scrun.supervisor.children.pumps import Output, messages
from scrun.supervisor.contracts.engine import JobRequest, NodeAnswer, Program, Session
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.local.commands import Commands, RuntimeContainer
from scrun.supervisor.engines.local.runtimes import program_failure, read_log
from scrun.supervisor.engines.local.session import LocalSession

_PATIENCE = 5.0
_RETRY = 0.05
_LOG = 1 << 20


class LocalJob:
    """A job of the embedded engine, but for `run` (see `supervisor.contracts.engine.Job`).

    Attributes:
        stays: Whether its container has ended, and is left to the runtime until `delete`.
    """

    def __init__(
        self,
        commands: Commands,
        container: RuntimeContainer,
        request: JobRequest,
        tell: Callable[[RuntimeContainer | None], Awaitable[None]],
    ) -> None:
        """Describe a job.

        Args:
            commands: Those of the runtime.
            container: The container.
            request: What it was asked for with.
            tell: Called when more is known of a container that is a mere process; with None when
                the holder of the job has nothing to remove any more.
        """
        self._commands = commands
        self._container = container
        self._request = request
        self._tell = tell
        self._child_env = commands.child_env(request.child_env)
        self._runtime: Child | None = None
        self._fatal = 0
        self.stays = False

    @property
    def id(self) -> str:
        """The job's number."""
        return self._container.job_id

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of a job with one node and one task."""
        node = os.uname().nodename
        processors = str(os.cpu_count() or 1)
        return {
            "SLURM_CLUSTER_NAME": "local",
            "SLURM_JOBID": self._container.job_id,
            "SLURM_JOB_CPUS_PER_NODE": processors,
            "SLURM_JOB_ID": self._container.job_id,
            "SLURM_JOB_NAME": "scrun",
            "SLURM_JOB_NODELIST": node,
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_JOB_PARTITION": "local",
            "SLURM_NNODES": "1",
            "SLURM_NODELIST": node,
            "SLURM_SUBMIT_DIR": self._request.directory,
            "SLURM_SUBMIT_HOST": node,
            "SLURM_TASKS_PER_NODE": "1",
        }

    async def signal(self, number: int) -> None:
        """Send a signal to the container's first process.

        Raises:
            EngineError: It was not delivered.
        """
        if not self._runs:
            raise EngineError("the container does not run")
        if number in FATAL:
            self._fatal = number  # the runtime may fail of it, even before its kill has returned
        with trio.move_on_after(_PATIENCE):
            # For some milliseconds after the start the runtime does not know it yet, and no
            # event tells when it does.
            while (reason := await self._kill(number)) and self._runs:  # noqa: ASYNC110
                await trio.sleep(_RETRY)
            return
        raise EngineError(f"the signal was not delivered: {reason}")

    async def _kill(self, number: int) -> str:
        """Call the runtime's kill; return why it failed, or nothing."""
        said: list[str] = []
        command = self._commands.kill(self._container, number)
        async with (
            messages(said.append) as stderr,
            child(command, self._child_env, stderr=stderr) as kill,
        ):
            status = await kill.wait()
        return "; ".join(said) or f"status {status}" if status else ""

    async def session(self, program: Program) -> Session:
        """Prepare to run one more program in the container.

        Raises:
            StateError: The container does not run.
            EngineError: The site's oci.conf has no command for it.
        """
        self._check_running()
        command = self._commands.exec(self._container)
        state = self._commands.state(self._container)
        return LocalSession(command, state, self._child_env, program)

    async def pause(self, *, resume: bool) -> None:
        """Stop all processes of the container, or let them go on.

        Raises:
            StateError: The container does not run.
            EngineError: It was not done.
        """
        command = self._commands.pause(self._container, resume=resume)
        name = "CONT" if resume else "STOP"

        def script(state: str) -> str:
            # a rootless runtime may have no cgroup to freeze, and then it says so
            first = f"({command}) >/dev/null 2>&1 && exit\n" if command else ""
            return first + signal_script(state, name)

        [answer] = await self.inspect(script)
        if answer.status:
            raise EngineError(f"the container's processes got no SIG{name}: {answer.text.strip()}")

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        """Run a shell script here.

        Raises:
            StateError: The container does not run.
        """
        self._check_running()
        text = script(self._commands.state(self._container))
        output = Output()
        async with (
            messages(output.take) as said,
            child(["/bin/sh", "-c", text], self._child_env, stdout=said, stderr=said) as running,
        ):
            status = await running.wait()
        lines = "".join(f"{line}\n" for line in output.lines)
        return [NodeAnswer(os.uname().nodename, status, lines)]

    async def update(self, resources: str, wanted: Sequence[str], limit: str) -> None:
        """Have the runtime change the limits; of time there is none here.

        Raises:
            EngineError: It cannot.
        """
        if limit:
            raise EngineError(f"time limit {limit}: containers on this machine have none")
        if not wanted:
            return
        command = self._commands.update(self._container)
        if not command:
            raise EngineError(
                f"container {self._request.container}: {', '.join(wanted)}: cannot be changed: "
                "the runtime here makes no cgroups"
            )
        [answer] = await self.inspect(lambda _: f"printf %s {shlex.quote(resources)} | {command}")
        if answer.status:
            raise EngineError(f"{', '.join(wanted)}: {answer.text.strip()}")

    @property
    def _runs(self) -> bool:
        """Whether there is something that runs the container."""
        return self._runtime is not None and not self._runtime.ended

    def _check_running(self) -> None:
        if not self._runs:
            raise StateError(f"container {self._request.container} is not running")

    async def command(
        self, script: str, output: int, variables: Mapping[str, str] | None = None
    ) -> int:
        """Run a shell script here, the only node (see `supervisor.contracts.engine.Job`)."""
        request = self._request
        environment = {**request.child_env.environment, **self.environment, **(variables or {})}
        child_env = msgspec.structs.replace(request.child_env, environment=environment)
        return await run_shell(
            script, child_env, stdout=output, stderr=output, directory=request.directory
        )

    def resized(self) -> None:
        """Pass a new size of the terminal on; the runtime looks when it is told."""
        if self._runtime is not None:
            self._runtime.signal(signal.SIGWINCH)


async def read_tail(log: str) -> tuple[str, bytes]:
    """Read the end of a runtime's log, where the reason is (see `read_log`)."""
    return read_log(await in_thread(_tail, log))


def _tail(log: str) -> bytes:
    """Read the end of a log, where the reason is."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG))
            return file.read(_LOG)
    except OSError:  # there is none: nothing went wrong
        return b""


def not_started(reason: str, *, told: bool) -> Ending:
    """Make an ending of what the runtime said; `told` if the container's stderr has it."""
    text = shortened(f"the container could not be started: {reason}")
    if (status := program_failure(reason)) is not None:
        return Ending(status, "not-found" if status == 127 else "not-executable", text, told)
    return msgspec.structs.replace(taken("scrun-failure", text), told=told)
