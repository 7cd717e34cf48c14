"""One container on this machine: all that does not depend on how it is run; its ports too."""

import os
import shlex
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Generic, TypeVar

import msgspec
import trio

from scrun.cli.copied import copier
from scrun.core.errors import EngineError, StateError, why
from scrun.core.paths import python_code
from scrun.model.states import FATAL
from scrun.oci.signals import its_end
from scrun.settings.slurm.outputs import container_variables
from scrun.supervisor.children.node_scripts import exec_script, process_variables, signal_script
from scrun.supervisor.children.processes import Child, ChildEnv, child, run_shell
from scrun.supervisor.children.pumps import Output, heard, messages
from scrun.supervisor.contracts.engine import Files, Job, JobRequest, NodeAnswer, Program, Session
from scrun.supervisor.contracts.networks import Reach
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.failures import read_log
from scrun.supervisor.engines.local.commands import Commands, RuntimeCommands, RuntimeContainer
from scrun.supervisor.engines.local.held_exec import HeldSession, OwnPrograms, begun, resumed
from scrun.supervisor.engines.local.own_devices import spared
from scrun.supervisor.engines.local.runtime_config import with_variables
from scrun.supervisor.nodes.beside import Beside
from scrun.supervisor.shim.network import elsewhere
from scrun.supervisor.shim.processes import bind_exec, descendants
from scrun.supervisor.shim.runtime import of_slurm

_PATIENCE = 5.0
_RETRY = 0.05
_LOG = 1 << 20

Tell = Callable[[RuntimeContainer | None], Awaitable[None]]
"""Is called when more is known of a container that is a mere process; with None when the job's
keepalive has nothing left to remove."""

C = TypeVar("C", bound=Commands)


class LocalJob(Job, Generic[C]):
    """A job of the local engine, without `run`.

    Attributes:
        stays: Whether its container has ended and the runtime keeps it until `delete`.
    """

    copies_files = True

    def __init__(
        self,
        commands: C,
        container: RuntimeContainer,
        request: JobRequest,
        tell: Tell,
        found: Inheritance | None = None,
    ) -> None:
        """`found`: what another supervisor has left, which has made the container."""
        self._commands = commands
        self._container = container
        self._request = request
        self._tell = tell
        self._found = found
        self._child_env = commands.child_env(request.child_env)
        self._runtime: Child | None = None
        self._programs = OwnPrograms(request.deposit)
        self._fatal = 0
        self.stays = False
        self._of_task = of_task(request)

    @property
    def id(self) -> str:
        return self._container.job_id

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of the task that it is in; else of a job with one node and one task."""
        if self._of_task:
            return self._of_task
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

    def _variables_of(self, bundle: str) -> dict[str, str]:
        """Return what a container has of its task, and of Slurm's names for it; else nothing."""
        if not self._of_task:
            return {}
        return {**self._of_task, **container_variables(self._request.container, bundle)}

    async def signal(self, number: int) -> None:
        if not self._runs:
            raise EngineError("the container is not running")
        if number in FATAL:
            self._fatal = (
                number  # the runtime may fail because of it, even before its `kill` returns
            )
        with trio.move_on_after(_PATIENCE):
            # For some milliseconds after the start the runtime does not know the container,
            # and no event tells when it does.
            while (reason := await self._kill(number)) and self._runs:  # noqa: ASYNC110
                await trio.sleep(_RETRY)
            return
        raise EngineError(f"the signal was not delivered: {reason}")

    async def _kill(self, number: int) -> str:
        """Call the runtime's `kill`; return why it failed, or ""."""
        errors: list[str] = []
        command = self._commands.kill(self._container, number)
        status = await heard(command, self._child_env, errors.append)
        return "; ".join(errors) or f"the runtime {its_end(status)}" if status else ""

    async def session(self, program: Program) -> Session:
        self._check_running()
        if program.files is not None:
            return self._copying(program, program.files)
        if self._of_task:
            own = self._variables_of(self._container.bundle)
            env = with_variables(program.process.get("env") or (), own)
            process = {**program.process, "env": env}
            bind_exec(process, self._child_env.processors or os.sched_getaffinity(0))
            program = msgspec.structs.replace(program, process=process)
        if isinstance(self._commands, RuntimeCommands):
            process = {**program.process, "user": dict(program.process.get("user") or {})}
            self._commands.fit(process)
            program = msgspec.structs.replace(program, process=process)
        preserved = program.preserved if self.hands_on else ()
        command = self._commands.exec(self._container, preserved)
        state = self._commands.state(self._container)
        variables = process_variables(program.process)
        script = exec_script(command, state, variables)
        child_env = self._child_env.with_more(variables)
        stdio = spared(program.stdio, self._container.record)
        program = msgspec.structs.replace(program, stdio=stdio)
        return HeldSession(begun(script, child_env, program, self._programs))

    def _copying(self, program: Program, files: Files) -> Session:
        script = f"exec {shlex.join(copier(*files, self._first_pid))}"
        stdio = spared(program.stdio, self._container.record)
        program = msgspec.structs.replace(program, stdio=stdio)
        return HeldSession(begun(script, self._child_env, program, self._programs))

    def reaching(self, *, outside: bool = False) -> AbstractAsyncContextManager[Reach]:
        del outside  # what an engine has connected is the container's own network here
        self._check_running()
        return reaching(self._first_pid, self._child_env)

    @property
    def _first_pid(self) -> int:
        """The container's first process, or the runtime, whose descendant it is."""
        assert self._runtime is not None
        return self._runtime.pid

    async def resumed_session(
        self, found: Inheritance, deposit: Deposit, running: Callable[[], None]
    ) -> Session:
        return HeldSession(resumed(found, running))

    async def pause(self, *, resume: bool) -> None:
        command = self._commands.pause(self._container, resume=resume)
        name = "CONT" if resume else "STOP"

        def script(state: str) -> str:
            # a rootless runtime may have no cgroup to freeze, and then it fails
            first = f"({command}) >/dev/null 2>&1 && exit\n" if command else ""
            return first + signal_script(state, name)

        [answer] = await self.inspect(script)
        if answer.status:
            raise EngineError(
                f"SIG{name} did not reach the container's processes: {answer.text.strip()}"
            )

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        self._check_running()
        text = script(self._commands.state(self._container))
        output = Output()
        async with (
            messages(output.take) as errors,
            child(
                ["/bin/sh", "-c", text], self._child_env, stdout=errors, stderr=errors
            ) as running,
        ):
            status = await running.wait()
        lines = "".join(f"{line}\n" for line in output.lines)
        return [NodeAnswer(os.uname().nodename, status, lines)]

    async def update(self, resources: str, wanted: Sequence[str], limit: str) -> None:
        """Let the runtime change the limits; there is no time limit here."""
        if limit:
            raise EngineError(f"time limit {limit}: containers on this machine have no time limit")
        command = self._commands.update(self._container)
        if not command and not wanted:
            return
        if not command:
            raise EngineError(
                f"container {self._request.container}: {', '.join(wanted)} cannot be changed: "
                "the runtime uses no cgroups here"
            )
        [answer] = await self.inspect(lambda _: f"printf %s {shlex.quote(resources)} | {command}")
        if answer.status:
            what = ", ".join(wanted) or f"container {self._request.container}: limits"
            raise EngineError(f"{what}: {answer.text.strip()}")

    @property
    def _runs(self) -> bool:
        return self._runtime is not None and not self._runtime.ended

    def _check_running(self) -> None:
        if not self._runs:
            raise StateError(f"container {self._request.container} is not running")

    async def command(
        self, script: str, output: int, variables: Mapping[str, str] | None = None
    ) -> int:
        request = self._request
        child_env = request.child_env.with_more({**self.environment, **(variables or {})})
        return await run_shell(
            script, child_env, stdout=output, stderr=output, directory=request.directory
        )

    def resized(self) -> None:
        """Make the runtime read the new size of the terminal."""
        if self._runtime is not None:
            self._runtime.signal(signal.SIGWINCH)


def of_task(request: JobRequest) -> dict[str, str]:
    """Return the variables of the task of Slurm's that a container belongs to, or none.

    PMI's descriptor is with whoever called us.
    """
    if not request.task:
        return {}
    found = of_slurm(request.child_env.environment)
    found.pop("PMI_FD", None)
    return found


async def read_tail(log: str) -> tuple[str, bytes]:
    """Read the end of a runtime's log, which has the reason of a failure (see `read_log`)."""
    return read_log(await in_thread(_tail, log))


def _tail(log: str) -> bytes:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG))
            return file.read(_LOG)
    except OSError:  # no log: nothing went wrong
        return b""


_PROGRAM = "from scrun.supervisor.shim.network import serve_descriptor; serve_descriptor()"


@asynccontextmanager
async def reaching(pid: int, child_env: ChildEnv) -> AsyncIterator[Reach]:
    """Reach the network of a process, or of its first descendant that has another than ours.

    See `supervisor.contracts.engine.Job.reaching`.
    """
    try:
        found = await in_thread(lambda: elsewhere([pid, *descendants(pid)]))
    except OSError as error:
        raise EngineError(f"its network cannot be entered: {why(error)}") from None
    if found is None:
        with Beside(None) as beside:
            yield beside.reach
        return
    here, there = socket.socketpair()
    with Beside(here) as beside:
        async with AsyncExitStack() as stack:
            with there:
                words = python_code(_PROGRAM, str(found), str(there.fileno()))
                started = child(words, child_env, pass_fds=[there.fileno()])
                await stack.enter_async_context(started)
            await beside.enter()
            yield beside.reach
