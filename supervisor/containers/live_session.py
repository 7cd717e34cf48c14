"""The programs of `exec` in a container: new ones, and those that a dead supervisor began."""

import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import trio

from scrun.core.errors import BundleError, ScrunError, described
from scrun.model.states import FATAL, Ending, killed, taken
from scrun.supervisor.containers.anchors import Anchor, repeats
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.engine import Files, Job, Program, Session, handles
from scrun.supervisor.core.deposits import OWN, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import Tasks, unwrapped
from scrun.supervisor.log.journal import Journal

_GRACE = 5.0
ANCHOR = f"{OWN}anchor"
"""The name by which its anchor's socket is kept."""


class NotRunnableError(BundleError):
    """The program is not in the container or not executable; has a shell's exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status


class Prepared(msgspec.Struct, frozen=True):
    """A program that can be run.

    Attributes:
        process: The program, as `process` of config.json.
        is_known: Whether its file was found.
        files: Files that are to be copied instead.
    """

    process: Mapping[str, Any]
    is_known: bool
    files: Files | None = None


class LiveSession:
    """A program with its anchor and its descriptors.

    Attributes:
        deposit: Keeps what it needs to outlive us.
        settled: Set when it runs, or never will.
        ending: How it ended, or None.
    """

    def __init__(
        self,
        pid: int,
        journal: Journal,
        anchor: Anchor,
        stdio: Stdio,
        deposit: Deposit,
        *,
        in_step: bool = False,
    ) -> None:
        """Prepare; nothing runs yet. Anchor, stdio and deposit are owned from now on.

        `in_step`: whether the anchor is a command in a step of Slurm's, which signals that.
        """
        self._in_step = in_step
        self.deposit = deposit
        self.settled = trio.Event()
        self.ending: Ending | None = None
        self._runs = False
        self._session: Session | None = None
        self._over = trio.Event()
        self._pid = pid
        self._name = f"exec {pid}"
        self._journal = journal
        self._anchor = anchor
        self._stdio = stdio
        self._scope = trio.CancelScope()

    @property
    def failure(self) -> ScrunError | None:
        if self._runs or self.ending is None:
            return None
        if self.ending.reason in ("not-found", "not-executable"):
            text = self.ending.text or "the runtime cannot run the program"
            return NotRunnableError(text, self.ending.status)
        return ScrunError(self.ending.text or f"it ended with {self.ending.status}")

    async def run(self, job: Job, prepared: Prepared) -> None:
        """Run it to its end. An error becomes its ending; only a cancellation is raised."""
        program = Program(
            process=prepared.process,
            stdio=self._stdio.fds,
            terminal=bool(prepared.process.get("terminal")),
            program_is_known=prepared.is_known,
            running=self._runs_now,
            deposit=self.deposit,
            preserved=self._stdio.preserved,
            files=prepared.files,
            on_output_lost=self._output_lost,
        )
        await self._run(lambda: job.session(program), self._forward_signals)

    def _output_lost(self, reason: str) -> None:
        self._journal.write("error", f"{self._name}: {reason}")
        self._stdio.say(reason)

    async def run_on(self, job: Job, found: Inheritance) -> None:
        """Run one that another supervisor has begun, which has died, to its end; see `run`.

        Args:
            found: What the other has left; its descriptors are owned from now on.
        """
        self._runs = True
        begin = partial(job.resumed_session, found, self.deposit, self.settled.set)
        await self._run(begin, self._forward_later)

    async def _forward_later(self, session: Session, nursery: trio.Nursery) -> None:
        """Forward signals once it can get them; some may have arrived while nobody served it."""
        await self.settled.wait()
        await self._forward_signals(session, nursery)

    async def _run(
        self,
        begin: Callable[[], Awaitable[Session]],
        forward: Callable[[Session, trio.Nursery], Awaitable[None]],
    ) -> None:
        try:
            async with unwrapped() as nursery:
                session = self._session = await begin()
                nursery.start_soon(forward, session, nursery)
                with self._scope:
                    self.ending = await session.run()
                nursery.cancel_scope.cancel()
        except Exception as error:
            text = described(error)
            self._journal.write("error", f"{self._name}: {text}")
            self.ending = self.ending or taken("scrun-failure", text)
        finally:
            # cancelled with its container, whose processes were killed
            self.ending = self.ending or killed(signal.SIGKILL)
            self._journal.write("verbose", f"{self._name} ended with {self.ending.status}")
            with trio.CancelScope(shield=True):
                await self._stdio.said()
            self._stdio.close()
            self._anchor.end(self.ending.status)
            self.deposit.end()
            with trio.CancelScope(shield=True):
                await self._anchor.close()
            self.settled.set()
            self._over.set()

    async def let_end(self) -> None:
        """Wait for its end if its job is taken away and it has been told, and does care.

        Raises:
            EngineError: That is not known.
        """
        session = self._session
        if session is not None and await session.handles(signal.SIGTERM):
            await self._over.wait()

    def _runs_now(self) -> None:
        self._runs = True
        self._keep()
        self._stdio.keep_error_only()
        self._journal.write("verbose", f"{self._name} runs")
        self.settled.set()

    def _keep(self) -> None:
        """Keep from now on what it needs to outlive us."""
        if "target" not in self.deposit.facts:
            self.deposit.give_up("its engine keeps nothing of it")
            return
        self.deposit.share({ANCHOR: self._anchor.fileno()}, pid=self._pid, in_step=self._in_step)
        self.deposit.begin()

    async def _forward_signals(self, session: Session, nursery: trio.Nursery) -> None:
        """Forward signals; a second fatal one, or the anchor's death, ends the program.

        In a step the second one does so only as in `supervisor.containers.anchors`.
        """
        end_requested = False
        is_repeated = repeats()
        async for number in self._anchor.signals():
            if number == signal.SIGWINCH:
                session.resized()
            elif self._in_step and is_repeated(number):
                continue
            elif number in FATAL and not self._runs:
                self._end(killed(number))
            else:
                nursery.start_soon(self._pass_on, session, number, end_requested)
            end_requested = end_requested or number in FATAL
        self._end(killed(signal.SIGKILL))

    async def _pass_on(self, session: Session, number: signal.Signals, again: bool) -> None:
        ends = number in FATAL and not (self._in_step and await handles(session, number))
        if not (ends and again):
            try:
                await session.signal(number)
            except (ScrunError, OSError) as error:
                self._journal.write("error", f"{self._name}: {described(error)}")
            if ends:
                await trio.sleep(_GRACE)
        if ends:
            self._end(killed(number))

    def _end(self, ending: Ending) -> None:
        self.ending = self.ending or ending
        self._scope.cancel()


class Execs:
    """All of one container's.

    Attributes:
        when_ended: Called when one has ended.
        known: The pids of the anchors of those that another supervisor has begun.
    """

    def __init__(self, tasks: Tasks, deposit: Deposit) -> None:
        self.when_ended: Callable[[], None] = _nothing
        self._tasks = tasks
        self._deposit = deposit
        self._live: set[LiveSession] = set()
        self.known: set[int] = set()

    @property
    def would_end(self) -> bool:
        """Whether one of them would end with us."""
        return any(not session.deposit.is_kept for session in self._live)

    def deposit(self) -> Deposit:
        """Return a deposit for one more."""
        return self._deposit.of_program()

    def begin(self, session: LiveSession, run: Callable[[], Awaitable[None]]) -> bool:
        """Run one, which ends with the container; return whether that was possible."""

        async def live() -> None:
            self._live.add(session)
            try:
                await run()
            finally:
                self._live.remove(session)
                self.when_ended()

        return self._tasks.begin(live)

    async def let_end(self) -> None:
        """Wait for the ends of those that make use of the time that Slurm gives them.

        Raises:
            EngineError: The ends are not known.
        """
        async with unwrapped() as nursery:
            for session in self._live:
                nursery.start_soon(session.let_end)


def _nothing() -> None:
    """Do nothing."""


async def tell(found: Inheritance, ending: Ending) -> None:
    """Tell the anchor of a program that a dead supervisor has left how that has ended."""
    anchor = Anchor(found.take(ANCHOR))
    anchor.end(ending.status)
    with trio.CancelScope(shield=True):
        await anchor.close()
    found.close()
