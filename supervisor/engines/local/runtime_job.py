"""A container of crun or runc: creates it, starts it, and waits for its end.

Under a container engine its first process is a child of the engine's monitor, as when the engine
calls crun or runc itself: the waiting `scrun create` calls the runtime's `create`.
docs/decisions/pid-on-this-machine.md explains why. Otherwise its parent is a reaper
(`supervisor.reapers.runtime`).
"""

import json
import math
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio

from scrun.core.errors import EngineError, shortened
from scrun.core.typed import convert
from scrun.model.states import Ending, Phase, exited, taken
from scrun.model.usage import Usage
from scrun.oci.signals import its_end
from scrun.supervisor.children.persistent import foreign_process, status_of
from scrun.supervisor.children.processes import Child, child, exit_code, output_of, own_program
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.contracts.engine import JobRequest, Step
from scrun.supervisor.contracts.first_process import Call
from scrun.supervisor.core.deposits import JOB
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.failures import NotMade, create_and_run
from scrun.supervisor.engines.local.commands import (
    RuntimeCommands,
    RuntimeContainer,
    program,
    put_in_place,
)
from scrun.supervisor.engines.local.held_exec import end_left
from scrun.supervisor.engines.local.job import LocalJob, Tell, read_tail
from scrun.supervisor.engines.local.own_devices import spared
from scrun.supervisor.engines.local.runtime_config import changed_environment
from scrun.supervisor.reapers.runtime import CONSOLE
from scrun.supervisor.shim.processes import bind, handles
from scrun.supervisor.shim.usage import of_cgroups, own_cgroups

UNKNOWN = Ending(
    -1, "exited", "only the container engine knows its exit status: this kernel is older than 6.15"
)

_PATIENCE = 5.0
_LOCAL = ("/bin/sh", "-c", 'exec "$@"', "sh")  # the runtime may be on a file system that hangs
_STARTS = 10.0
_PROGRAM = program("reapers", "runtime")
_LINE = 80
TERMINAL = 1.0
"""Seconds that a reaper has for the end of its terminal."""


class ForeignChild:
    """A process that is a child of another one (see `first_process.FirstProcess`).

    Attributes:
        ending: How it ended, if it has; `UNKNOWN` if the status cannot be read.
        used: What it has used, then, as far as its parent tells (`Usage`).
    """

    is_started = False
    start: Callable[[], Coroutine[Any, Any, None]]

    def __init__(self, pid: int, pidfd: int | None = None) -> None:
        """Own its pidfd; without one open it, which raises OSError if the process is gone."""
        self.pid = pid
        self.pidfd = os.pidfd_open(pid) if pidfd is None else pidfd
        self.ending: Ending | None = None
        self.used: dict[str, Any] = {}
        self._lock = trio.Lock()

    @property
    def over(self) -> bool:
        """Whether it has ended, even if `ended` has not returned yet."""
        if self.ending is None and self.pidfd >= 0:
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            return bool(poller.poll(0))
        return True

    async def ended(self) -> Ending:
        async with self._lock:  # trio lets only one task wait for a descriptor
            if self.ending is None:
                self.ending = await self._end()
        return self.ending

    async def _end(self) -> Ending:
        status = await status_of(self.pid, self.pidfd)
        return UNKNOWN if status is None else exited(exit_code(status))

    def kill(self) -> None:
        """Send it SIGKILL; if it is pid 1 of a PID namespace, that ends all processes there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.pidfd)
        self.pidfd = -1


class ToldChild(ForeignChild):
    """One whose parent, a reaper or the `scrun run` that has made it, tells its status."""

    def __init__(
        self, pid: int, pidfd: int | None, told: Callable[[], Awaitable[bytes]], why: str
    ) -> None:
        """`told` waits for what its parent tells, nothing if that has died: `why` it is ended."""
        super().__init__(pid, pidfd)
        self._told, self._why = told, why

    async def _end(self) -> Ending:
        if told := (await self._told()).split():
            self.used = _used(*told[1:])
            return exited(int(told[0]))
        self.kill()
        return taken("scrun-failure", f"the container was ended: {self._why}")


def _of_run(pid: int, pidfd: int, pipe: int) -> ToldChild:
    """Return the child of a `scrun run`, which writes to a pipe what a reaper tells."""

    async def told() -> bytes:
        await trio.lowlevel.wait_readable(pipe)
        return os.read(pipe, _LINE)

    return ToldChild(pid, pidfd, told, "its `scrun run` was killed")


def _of_reaper(pid: int, reaper: Child, status: int, pidfd: int | None = None) -> ToldChild:
    """Return the child of a reaper, which writes its status to a file and ends."""

    async def told() -> bytes:
        await reaper.wait()
        return os.pread(status, _LINE, 0)

    return ToldChild(pid, pidfd, told, "its reaper ended first")


class RuntimeJob(LocalJob[RuntimeCommands]):
    """A job that first creates its container."""

    creates_first = True
    below_engine = True
    hands_on = True

    def __init__(
        self,
        commands: RuntimeCommands,
        container: RuntimeContainer,
        request: JobRequest,
        tell: Tell,
        found: Inheritance | None = None,
    ) -> None:
        super().__init__(commands, container, request, tell, found)
        self._first: ForeignChild | None = None
        self._cgroups: Mapping[str, str] = {}
        self._begun = trio.Event()

    async def signal(self, number: int) -> None:
        """Before the start, the signal would hit the runtime's code."""
        await self._begun.wait()
        await super().signal(number)

    async def handles(self, number: int) -> bool:
        await self._begun.wait()
        return self._runs and self._first is not None and handles(self._first.pid, number)

    @property
    def usage(self) -> Usage | None:
        if self._first is None or not self._first.over:
            return None
        found = {**self._first.used, **of_cgroups(self._cgroups)}
        return convert(found, Usage) if found else None

    @property
    def _runs(self) -> bool:
        return self._first is not None and self._first.ending is None

    @property
    def _first_pid(self) -> int:
        assert self._first is not None  # it runs
        return self._first.pid

    run = create_and_run

    @asynccontextmanager
    async def created(
        self, step: Step, call: Call | None = None, console: str | None = None
    ) -> AsyncIterator[ForeignChild]:
        record = self._request.record
        pid_file = os.path.join(record, "runtime.pid")
        async with AsyncExitStack() as stack:
            stack.callback(self._begun.set)
            status = -1
            if call is None:
                status = os.memfd_create("scrun-status", os.MFD_CLOEXEC)
                stack.callback(os.close, status)
                call = partial(self._by_reaper, stack, step, status, pid_file)
                console = CONSOLE if step.terminal else None
            await self._make(step, call, pid_file, console, ours=status >= 0)
            reaper = self._runtime
            await in_thread(os.chmod, pid_file, 0o600)  # runtimes apply the caller's umask
            pid = await in_thread(_read_pid, pid_file)
            if self._of_task:
                bind(pid, self._child_env.processors)
            try:
                first = ForeignChild(pid) if not reaper else _of_reaper(pid, reaper, status)
            except ProcessLookupError:
                raise NotMade("its first process was killed", shown=False) from None
            deposit = self._request.deposit
            self._cgroups = own_cgroups(pid)
            deposit.hold(
                {f"{JOB}first": first.pidfd},
                job=self.id, target=self._container.name, first=pid, cgroups=self._cgroups,
            )  # fmt: skip
            if reaper is not None:
                kept = {f"{JOB}reaper": reaper.pidfd, f"{JOB}status": status}
                deposit.hold(kept, reaper=reaper.pid)
                reaper.outlives_us()
            async with self._holding(first):
                yield first

    @asynccontextmanager
    async def resumed(self) -> AsyncIterator[ForeignChild]:
        assert self._found is not None
        async with AsyncExitStack() as stack:
            stack.callback(self._begun.set)
            first = await self._first_process(self._found, stack)
            self._cgroups = self._found.facts.get("cgroups", {})
            if end_left(self._found.facts):
                self._request.deposit.note(programs=[])
            async with self._holding(first):
                first.is_started = await self._is_started(self._found, first)
                if first.is_started:
                    self._begun.set()
                yield first

    async def _first_process(self, found: Inheritance, stack: AsyncExitStack) -> ForeignChild:
        facts = found.facts
        pid, pidfd = facts["first"], found.take(f"{JOB}first")
        if f"{JOB}told" in found.fds:
            told = found.take(f"{JOB}told")
            stack.callback(os.close, told)
            return _of_run(pid, pidfd, told)
        if "reaper" not in facts:
            return ForeignChild(pid, pidfd)
        reaper = await stack.enter_async_context(
            foreign_process(facts["reaper"], found.take(f"{JOB}reaper"), "reaper", grace=TERMINAL)
        )
        self._runtime = reaper
        status = found.take(f"{JOB}status")
        stack.callback(os.close, status)
        return _of_reaper(pid, reaper, status, pidfd)

    @asynccontextmanager
    async def _holding(self, first: ForeignChild) -> AsyncIterator[None]:
        """Hold a first process; it is ended when the block is left."""
        self._first, first.start = first, self._begin
        try:
            yield
        finally:
            with trio.move_on_after(_PATIENCE, shield=True):
                first.kill()
                await first.ended()
            if first.over:
                # the runtime keeps its state until `delete`, which runs the last hooks
                with trio.CancelScope(shield=True):
                    await self._tell(None)
                self.stays = True
                self._request.on_deferred_release()
            first.close()

    async def _make(
        self, step: Step, call: Call, pid_file: str, console: str | None, *, ours: bool
    ) -> None:
        log = os.path.join(self._request.record, "runtime.log")
        commands = self._commands
        own = self._variables_of(step.submitted or step.bundle)
        async with changed_environment(step.bundle, {**own, **step.variables}):
            self._container = await in_thread(
                commands.prepare, self._container, step, dict(self.environment)
            )
        # a runtime whose `scrun create` was killed must not create the container later
        before = [own_program("setpriv"), "--pdeathsig", "KILL", "--"]
        more = step.preserved
        create = commands.create(self._container, log, pid_file, console, len(more))
        if ours:  # else those of the caller, which are in place
            before += put_in_place(more)
        status = await call([*before, *create])
        if status:
            reason, _ = await read_tail(log)
            raise NotMade(reason or f"the runtime {its_end(status)}", shown=ours and bool(reason))

    async def _by_reaper(
        self, stack: AsyncExitStack, step: Step, status: int, pid_file: str, command: Sequence[str]
    ) -> int:
        """Start a reaper, which runs the command that creates the container; return its status.

        The reaper ends with the first process, whose status it writes to the file of `status`, or
        when the stack is left.
        """
        stdin, stdout, stderr = spared(step.stdio, self._request.record)
        line, created = os.pipe()
        async with trio.lowlevel.FdStream(line) as stream:
            try:
                program = [sys.executable, "-I", "-S", _PROGRAM, str(created), str(status)]
                program += [pid_file, ",".join(map(str, step.preserved))]
                reaper = self._runtime = await stack.enter_async_context(
                    child(
                        [*program, *command],
                        self._child_env,
                        stdin=stdin,
                        stdout=stdout,
                        stderr=stderr,
                        pass_fds=[created, status, *step.preserved],
                        grace=TERMINAL,
                        directory=self._request.record,
                    )
                )
            finally:
                os.close(created)
            said = await stream.receive_some()
        return int(said) if said.strip().lstrip(b"-").isdigit() else await reaper.wait()

    async def _begin(self) -> None:
        """Start its program, unless the supervisor before us began that at its last moment."""
        try:
            with trio.move_on_after(math.inf if self._found is None else _STARTS) as waiting:
                await self._start()
        except EngineError:
            if self._found is None or not await self._runs_already():
                raise
        if waiting.cancelled_caught and not await self._runs_already():
            raise EngineError(f"the container could not be started within {_STARTS:g} s")
        self._begun.set()

    async def _start(self) -> None:
        """Call the runtime's `start`.

        It goes on if we die: half-way, neither the runtime nor a second `start` could tell whether
        the program runs. Raises EngineError if the runtime failed.
        """
        errors: list[str] = []
        command = self._commands.start(self._container)
        async with (
            messages(errors.append) as stderr,
            child(
                [*_LOCAL, *command], self._child_env, stderr=stderr, dies_with_us=False
            ) as start,
        ):
            self._request.deposit.hold({f"{JOB}start": start.pidfd}, start=start.pid)
            status = await start.wait()
        if status:
            reason = "; ".join(errors) or f"the runtime {its_end(status)}"
            raise EngineError(shortened(f"the container could not be started: {reason}"))

    async def _is_started(self, found: Inheritance, first: ForeignChild) -> bool:
        """Tell whether its program was started, or is being started still."""
        phase = Phase[found.facts["phase"]]
        if phase is not Phase.STARTING:
            return phase is not Phase.CREATED
        if f"{JOB}start" in found.fds:
            pidfd = found.take(f"{JOB}start")
            async with foreign_process(
                found.facts["start"], pidfd, "start", grace=_STARTS
            ) as start:
                await start.wait()
        return first.over or await self._runs_already()

    async def _runs_already(self) -> bool:
        """Ask the runtime whether the program runs, or has ended."""
        command = self._commands.state(self._container)
        answer = await output_of(["/bin/sh", "-c", command], self._child_env)
        try:
            status = str(json.loads(answer)["status"])
        except (ValueError, KeyError, TypeError):
            return True  # it does not know the container, which ends
        return status not in ("creating", "created")


def _used(*figures: bytes) -> dict[str, Any]:
    """Return what its parent tells; a reaper of an older version does not."""
    if not figures:
        return {}
    user, system, kib = figures
    return {
        "user": float(user), "system": float(system),
        "memory": int(kib) << 10, "memory_of": "process",
    }  # fmt: skip


def _read_pid(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read(32))
