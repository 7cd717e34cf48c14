"""A container that an oci.conf's commands run, in the foreground; also a dead supervisor's."""

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress

import msgspec
import trio

from scrun.core.errors import EngineError, shortened
from scrun.model.states import Ending, Phase, exited, killed, taken
from scrun.oci.signals import its_end
from scrun.supervisor.children.persistent import (
    STDIO,
    inherited_child,
    persistent_child,
    status_of,
)
from scrun.supervisor.children.processes import Child, child, shell_status
from scrun.supervisor.children.terminal import write_size
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.contracts.first_process import Call
from scrun.supervisor.core.deposits import STEP
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.failures import NotMade, create_and_run, not_started
from scrun.supervisor.engines.local.held_exec import end_left, kill_started, pids_of_children
from scrun.supervisor.engines.local.job import LocalJob, read_tail
from scrun.supervisor.engines.local.own_devices import spared
from scrun.supervisor.engines.local.runtime_config import changed_environment
from scrun.supervisor.engines.local.site_commands import OciConfCommands
from scrun.supervisor.engines.watched import DeferredContainer, WatchedProcess, hold_step
from scrun.supervisor.shim.processes import handles

_PATIENCE = 5.0
GRACE = 1.0
"""Seconds that the command has between SIGTERM and SIGKILL."""

RUNTIME = "runtime"
"""The name by which the command is kept."""

LINE = f"{STEP}line"
"""The name by which the socket is kept, on which it is told to start the container."""

_FAILED = 1  # the exit status of crun and runc when they fail themselves
_UNKNOWN = "nobody knows its exit status: its supervisor has died, and Linux is older than 6.15"


class SiteJob(LocalJob[OciConfCommands]):
    """A job whose container runs in the foreground of a command."""

    def keep(self, step: Step) -> bool:
        deposit, commands = self._request.deposit, self._commands
        if not commands.is_container:
            deposit.give_up("it is a process, not an OCI container")
        hold_step(deposit, step)
        how = msgspec.to_builtins(commands)
        deposit.note(job=self.id, target=self._container.name, commands=how)
        return True

    async def run(self, step: Step) -> Ending:
        if step.terminal:
            await in_thread(write_size, step.bundle, step.stdio[0])
        own = self._variables_of(step.submitted or step.bundle)
        async with changed_environment(step.bundle, {**own, **step.variables}):
            status = await self._run(step)
        return await self._how_it_ended(status)

    def resumed(self) -> AbstractAsyncContextManager[WatchedProcess]:
        return self._deferred().resumed()

    def _deferred(self, start: Callable[[], Awaitable[None]] | None = None) -> DeferredContainer:
        """Take over what is to run, or runs; see `DeferredContainer`."""
        found, deposit = self._found, self._request.deposit
        assert found is not None
        end_left(found.facts)
        deposit.note(programs=[])
        go_on = self._go_on if RUNTIME in found.facts else None
        return DeferredContainer(found, deposit, self.run, go_on, start)

    async def _go_on(self, step: Step, *, task_status: trio.TaskStatus[bool]) -> Ending:
        found = self._found
        assert found is not None
        self._container = msgspec.structs.replace(
            self._container,
            bundle=found.facts["bundle"],
            rootfs=found.facts["rootfs"],
            arguments=tuple(step.arguments),
            foreground=found.facts[RUNTIME],
        )
        async with inherited_child(found, RUNTIME, grace=GRACE) as runtime:
            task_status.started(True)
            await self._end_of(runtime, step.running)
            status = await status_of(runtime.pid, runtime.pidfd)
        if status is None:
            return taken("scrun-failure", _UNKNOWN)
        return await self._how_it_ended(os.waitstatus_to_exitcode(status))

    async def handles(self, number: int) -> bool:
        runtime = self._runtime
        if runtime is None or runtime.ended:
            return False
        if not self._commands.is_container:
            return handles(runtime.pid, number)
        return any(handles(pid, number) for pid in pids_of_children(runtime.pid))

    @property
    def _log(self) -> str:
        return os.path.join(self._request.record, "runtime.log")

    async def _how_it_ended(self, status: int) -> Ending:
        """Say how the container ended, from the exit status of the command."""
        reason, _ = await read_tail(self._log)
        if reason:
            self._request.journal.write("error", reason)
        if status == _FAILED and reason:
            # a signal during the container's start makes the runtime fail
            return killed(self._fatal) if self._fatal else not_started(reason)
        if self._commands.is_container and status < 0:
            text = f"the container was ended: before it its OCI runtime {its_end(status)}"
            return taken("scrun-failure", text)
        return exited(shell_status(status))

    async def _run(self, step: Step) -> int:
        commands, deposit = self._commands, self._request.deposit
        container = self._container = await in_thread(
            commands.prepare, self._container, step, dict(self.environment)
        )
        deposit.note(bundle=container.bundle, rootfs=container.rootfs)
        async with persistent_child(
            commands.run(container, self._log),
            self._child_env,
            deposit if deposit.is_kept else None,
            RUNTIME,
            stdio=spared(step.stdio, self._request.record),
            grace=GRACE,
            whole_group=not commands.is_container,
            directory=commands.working_directory(container),
        ) as runtime:
            await self._is_process(runtime.pid)
            return await self._end_of(runtime, step.running)

    async def _end_of(self, runtime: Child, running: Callable[[], None]) -> int:
        """Wait for the end of the command; on a cancellation, end it."""
        self._runtime = runtime
        running()
        try:
            return await runtime.wait()
        except trio.Cancelled:
            # The runtime passes SIGTERM on, which an init may ignore.
            with trio.move_on_after(_PATIENCE, shield=True):
                if await self._kill(signal.SIGKILL):  # it has no container yet, or no state
                    kill_started(runtime)
                await runtime.wait()
            raise
        finally:
            await self._is_process(0)

    async def _is_process(self, pid: int) -> None:
        """Store the command's pid, with which the keepalive ends it if nobody adopts it."""
        name = "foreground" if self._commands.is_container else "pid"
        self._container = msgspec.structs.replace(self._container, **{name: pid})
        with trio.CancelScope(shield=True):
            await self._tell(self._container)


class Starting:
    """The socket by which a command in the foreground is told to start its container."""

    def __init__(self, line: trio.socket.SocketType, log: str) -> None:
        """`line`: our end; owned from now on."""
        self._line = line
        self._log = log

    async def start(self) -> None:
        """Ask for its start; another supervisor may have done so. EngineError if it failed."""
        with suppress(OSError):
            await self._line.send(b"\n")
        if not await self._told():
            reason, _ = await read_tail(self._log)
            if reason:
                raise EngineError(f"the container could not be started: {shortened(reason)}")

    async def _told(self) -> bytes:
        """Read a line; nothing: it has ended, or somebody else has read the last one."""
        try:
            return await self._line.recv(1)
        except OSError:
            return b""

    async def created(self) -> bool:
        """Wait until it is created; tell whether it is."""
        return bool(await self._told())


class CreatingSiteJob(SiteJob):
    """One whose commands create a container first."""

    creates_first = True
    _first: WatchedProcess | None = None

    async def signal(self, number: int) -> None:
        """Before the start, the signal would hit the runtime's code."""
        if self._first is not None:
            await self._first.begun.wait()
        await super().signal(number)

    run = create_and_run

    @asynccontextmanager
    async def created(
        self, step: Step, call: Call | None = None, console: str | None = None
    ) -> AsyncIterator[WatchedProcess]:
        del call, console  # of engines that become the parent: ours is the command
        if step.terminal:
            await in_thread(write_size, step.bundle, step.stdio[0])
        own = self._variables_of(step.submitted or step.bundle)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(
                changed_environment(step.bundle, {**own, **step.variables})
            )
            runtime, starting = await self._create(step, stack)

            async def ends(_: WatchedProcess) -> Ending:
                return await self._how_it_ended(await self._end_of(runtime, lambda: None))

            first = self._first = WatchedProcess(starting.start, ends)
            async with unwrapped() as nursery:
                nursery.start_soon(first.watch)
                try:
                    yield first
                finally:
                    nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def resumed(self) -> AsyncIterator[WatchedProcess]:
        assert self._found is not None
        ours = socket.socket(fileno=self._found.take(LINE))
        with trio.socket.from_stdlib_socket(ours) as line:
            starting = Starting(line, self._log)
            async with self._deferred(starting.start).resumed() as first:
                self._first = first
                if Phase[self._found.facts["phase"]] is Phase.RUNNING:
                    first.begun.set()
                yield first

    async def _create(self, step: Step, stack: AsyncExitStack) -> tuple[Child, Starting]:
        """Create the container, or raise NotMade; its command ends when the stack is left."""
        commands, deposit = self._commands, self._request.deposit
        container = self._container = await in_thread(
            commands.prepare, self._container, step, dict(self.environment)
        )
        ours, theirs = socket.socketpair()
        line = stack.enter_context(trio.socket.from_stdlib_socket(ours))
        stdin, stdout, stderr = spared(step.stdio, self._request.record)
        with theirs:
            runtime = await stack.enter_async_context(
                child(
                    commands.create(container, self._log, theirs.fileno()),
                    self._child_env,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=[theirs.fileno()],
                    grace=GRACE,
                    directory=commands.working_directory(container),
                )
            )
        await self._is_process(runtime.pid)
        starting = Starting(line, self._log)
        if not await starting.created():
            status = await runtime.wait()
            await self._is_process(0)
            reason, _ = await read_tail(self._log)
            raise NotMade(reason or f"RunTimeCreate {its_end(status)}", shown=False)
        hold_step(deposit, step)
        deposit.drop(STDIO)  # the container has them
        how = msgspec.to_builtins(commands)
        deposit.note(job=self.id, target=container.name, commands=how)
        deposit.note(bundle=container.bundle, rootfs=container.rootfs)
        kept = {f"{STEP}{RUNTIME}": runtime.pidfd, LINE: ours.fileno()}
        deposit.hold(kept, **{RUNTIME: runtime.pid})
        runtime.outlives_us()
        return runtime, starting
