"""One container on this machine."""

import contextlib
import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec
import trio

from scrun.errors import EngineError, StateError, shortened
from scrun.states import FATAL, Ending, exited, killed, taken
from supervisor.engines.base import Answer, Program, Request, Session, Step
from supervisor.engines.local.commands import Commands, Container
from supervisor.engines.local.environment import changed_environment
from supervisor.engines.local.session import LocalSession, kill_started
from supervisor.engines.script import signal_script
from supervisor.engines.terminal import write_size
from supervisor.processes import Child, child, run_shell, shell_status
from supervisor.pumps import Output, carried, messages
from supervisor.runtimes import program_failure, read_log
from supervisor.threads import in_thread

_PATIENCE = 5.0
_RETRY = 0.05
_LOG = 1 << 20
_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_FAILED = 1  # what crun and runc exit with when they fail themselves


class LocalJob:
    """A job of the embedded engine (see `supervisor.engines.base.Job`).

    Attributes:
        stays: Whether it is to be released when the container is deleted, and not before.
    """

    def __init__(
        self,
        commands: Commands,
        container: Container,
        request: Request,
        tell: Callable[[Container | None], Awaitable[None]],
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
        self.stays = False
        self._tell = tell
        self._setting = commands.setting(request.setting)
        self._runtime: Child | None = None
        self._fatal = 0

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

    async def run(self, step: Step) -> Ending:
        """Run the container in the foreground of the runtime's command, to its end."""
        log = os.path.join(self._request.record, "runtime.log")
        # crun moves the last output of a terminal to its log: so that is its standard error, and
        # what there is beside the log goes to the terminal
        heard = step.terminal and self._commands.logs_to_stderr
        if step.terminal:
            await in_thread(write_size, step.bundle, step.stdio[0])
        async with changed_environment(step.bundle, step.variables):
            with _opened(log if heard else None) as stderr:
                status = await self._run(step, log, stderr)
        reason, output = await read_tail(log)
        if reason:
            self._request.journal.write("error", reason)
        if heard and output:
            await self._write(step.stdio[2], output)
        if status == _FAILED and reason:
            # a signal that comes while the runtime starts the container makes it fail
            told = self._commands.logs_to_stderr and not heard
            return killed(self._fatal) if self._fatal else _not_started(reason, told=told)
        if self._commands.is_container and (status < 0 or (not reason and self._is_left())):
            text = f"the container was ended: its OCI runtime ended before it, with {status}"
            return taken("scrun-failure", text)
        return exited(shell_status(status))

    async def _run(self, step: Step, log: str, heard: int | None) -> int:
        """Run the runtime's command; return how it has ended.

        Args:
            step: The container.
            log: Where the runtime writes what went wrong.
            heard: The log, opened, if it is the runtime's standard error.
        """
        stdin, stdout, stderr = step.stdio
        commands = self._commands
        self._container = await in_thread(
            commands.prepare, self._container, step, dict(self.environment)
        )
        async with child(
            commands.run(self._container, log if heard is None else None),
            self._setting,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr if heard is None else heard,
            grace=1.0,
            whole_group=not commands.is_container,
            directory=commands.working_directory(self._container),
        ) as runtime:
            self._runtime = runtime
            await self._is_process(runtime.pid)
            step.running()
            try:
                return await runtime.wait()
            except trio.Cancelled:
                # The runtime passes SIGTERM on, and an init need not care for that.
                with trio.move_on_after(_PATIENCE, shield=True):
                    if await self._kill(signal.SIGKILL):  # it has no state, or no container yet
                        kill_started(runtime)
                    await runtime.wait()
                raise
            finally:
                await self._is_process(0)

    async def _write(self, terminal: int, output: bytes) -> None:
        """Write the last output to a terminal, which may have nobody who reads it."""
        with trio.move_on_after(_PATIENCE), contextlib.suppress(trio.BrokenResourceError):
            async with (
                carried(terminal, self._setting) as pipe,
                trio.lowlevel.FdStream(os.dup(pipe)) as stream,
            ):
                await stream.send_all(output)

    async def _is_process(self, pid: int) -> None:
        """Take notice of the process that the container is, where it is no more than that."""
        if not self._commands.is_container:
            self._container = msgspec.structs.replace(self._container, pid=pid)
            with trio.CancelScope(shield=True):
                await self._tell(self._container)

    def _is_left(self) -> bool:
        """Tell whether the runtime has left its container: at its end it forgets it, where it can.

        What it knows of the container says no more: one that is left with a terminal is hung up,
        and has stopped a moment later. crun 1.21 says nothing of what it could not forget.
        """
        try:
            place = os.statvfs(self._commands.place(self._container))
        except OSError:  # it is forgotten
            return False
        return not place.f_flag & os.ST_RDONLY

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
            child(command, self._setting, stderr=stderr) as kill,
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
        return LocalSession(command, state, self._setting, program)

    async def hold(self, *, resume: bool) -> None:
        """Stop all processes of the container, or let them go on.

        Raises:
            StateError: The container does not run.
            EngineError: It was not done.
        """
        command = self._commands.hold(self._container, resume=resume)
        name = "CONT" if resume else "STOP"

        def script(state: str) -> str:
            # a rootless runtime may have no cgroup to freeze, and then it says so
            first = f"({command}) >/dev/null 2>&1 && exit\n" if command else ""
            return first + signal_script(state, name)

        [answer] = await self.inspect(script)
        if answer.status:
            raise EngineError(f"the container's processes got no SIG{name}: {answer.text.strip()}")

    async def inspect(self, script: Callable[[str], str]) -> list[Answer]:
        """Run a shell script here.

        Raises:
            StateError: The container does not run.
        """
        self._check_running()
        text = script(self._commands.state(self._container))
        output = Output()
        async with (
            messages(output.take) as said,
            child(["/bin/sh", "-c", text], self._setting, stdout=said, stderr=said) as running,
        ):
            status = await running.wait()
        lines = "".join(f"{line}\n" for line in output.lines)
        return [Answer(os.uname().nodename, status, lines)]

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
        """Run a shell script here, the only node (see `supervisor.engines.base.Job`)."""
        request = self._request
        environment = {**request.setting.environment, **self.environment, **(variables or {})}
        setting = msgspec.structs.replace(request.setting, environment=environment)
        return await run_shell(
            script, setting, stdout=output, stderr=output, directory=request.directory
        )

    def resized(self) -> None:
        """Pass a new size of the terminal on; the runtime looks when it is told."""
        if self._runtime is not None:
            self._runtime.signal(signal.SIGWINCH)


@contextlib.contextmanager
def _opened(log: str | None) -> Iterator[int | None]:
    """Give a descriptor that appends to a log, if there is to be one."""
    if log is None:
        yield None
        return
    fd = os.open(log, _APPENDED, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


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


def _not_started(reason: str, *, told: bool) -> Ending:
    """Make an ending of what the runtime said; `told` if the container's stderr has it."""
    text = shortened(f"the container could not be started: {reason}")
    if (status := program_failure(reason)) is not None:
        return Ending(status, "not-found" if status == 127 else "not-executable", text, told)
    return msgspec.structs.replace(taken("scrun-failure", text), told=told)
