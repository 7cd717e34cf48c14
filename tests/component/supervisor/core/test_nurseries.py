"""Errors come out of hidden nurseries as what they are, and end nobody who is not concerned."""

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
import trio

from scrun.cli.parse import parse
from scrun.core.errors import EngineError, StateError
from scrun.model.record import Record
from scrun.model.states import Ending, Phase
from scrun.oci.config import Bundle
from scrun.settings.file.load import Log
from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.children.pumps import messages, tee
from scrun.supervisor.containers.anchors import Anchor, forward_signals
from scrun.supervisor.containers.audit import Trail
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.containers.live_session import Execs, LiveSession, Prepared
from scrun.supervisor.containers.phases import RunningContainer
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CommandLine
from scrun.supervisor.contracts.engine import Job, Program
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.core.deposits import no_deposit
from scrun.supervisor.core.nurseries import Tasks, for_all, unwrapped
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.sessions import operations

SETTING = ChildEnv({})


async def cannot_run() -> None:
    """Start a child that cannot be started, beside a hidden nursery."""
    async with (
        messages(print) as error,
        child(["/nonexistent"], SETTING, stderr=error, dies_with_us=False),
    ):
        pass


async def test_the_only_error_is_itself() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        await cannot_run()
    assert caught.value.__context__ is None


async def test_one_of_a_task() -> None:
    async def fail() -> None:
        raise EngineError("x")

    with pytest.raises(EngineError, match="x"):
        async with unwrapped() as nursery:
            nursery.start_soon(fail)


@pytest.mark.parametrize("cancels", [False, True])
async def test_one_of_several(cancels: bool) -> None:
    """The others are done before its error is raised, or cancelled; no group has several."""
    done: list[int] = []

    async def do(number: int) -> None:
        if number in (1, 2):
            raise EngineError(f"x{number}")
        await trio.sleep(0.01)
        done.append(number)

    with pytest.raises(EngineError, match=r"x[12]"):
        await for_all(range(4), do, cancels=cancels)
    assert sorted(done) == ([] if cancels else [0, 3])


async def test_one_deep_inside() -> None:
    with pytest.raises(EngineError, match="x"):
        async with unwrapped(), trio.open_nursery(), trio.open_nursery():
            raise EngineError("x")


async def test_several_stay_a_group() -> None:
    async def fail() -> None:
        raise EngineError("x")

    with pytest.RaisesGroup(EngineError, StateError):
        async with unwrapped() as nursery:
            nursery.start_soon(fail)
            raise StateError("y")


async def test_an_error_beside_a_cancellation() -> None:
    async def fail(scope: trio.CancelScope) -> None:
        async with unwrapped() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
            raise EngineError("x")

    with trio.CancelScope() as scope, pytest.raises(EngineError, match="x"):
        await fail(scope)


async def test_a_cancellation_stays_one() -> None:
    with trio.CancelScope() as scope:
        async with unwrapped() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
    assert scope.cancelled_caught


async def test_what_listens_to_a_container_that_cannot_be_started(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(FileNotFoundError):
        async with (
            tee(file.fileno(), ChildEnv({}), print) as pipe,
            child(["/nonexistent"], SETTING, stderr=pipe, dies_with_us=False),
        ):
            pass


class Signals:
    """An anchor that gets one signal, and lives until its end is asked for."""

    pid = 1

    def __init__(self, number: signal.Signals) -> None:
        self._number = number
        self.gone = trio.Event()

    async def signals(self) -> AsyncIterator[signal.Signals]:
        yield self._number
        await self.gone.wait()

    def end(self, status: int) -> None:
        pass

    async def close(self) -> None:
        pass


class Unreachable:
    """A container to which no signal can be delivered: for that a process is wanted."""

    phase = Phase.RUNNING
    ending = False
    about_to_run = False
    in_step = False

    def __init__(self, journal: Journal, nursery: trio.Nursery) -> None:
        self.journal = journal
        self.tried = trio.Event()
        self._nursery = nursery

    def resized(self) -> None:
        pass

    def skip_stage_out(self) -> None:
        pass

    def begin(self, call: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(call)

    async def kill(self, number: int) -> None:
        try:
            await cannot_run()
        finally:
            self.tried.set()

    async def handles(self, number: int) -> bool:
        return False

    def end(self, ending: Ending) -> None:
        pass


async def test_a_signal_that_cannot_be_delivered_ends_no_container(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "log"), Log(), "c")
    anchor = Signals(signal.SIGUSR1)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            container = Unreachable(journal, nursery)
            nursery.start_soon(forward_signals, cast(Anchor, anchor), container)
            await container.tried.wait()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    journal.close()
    assert "SIGUSR1 was not passed on: /nonexistent" in (tmp_path / "log").read_text()


class DeafJob:
    """A job whose program runs until it is told to stop; no signal reaches it."""

    def __init__(self) -> None:
        self.tried = trio.Event()
        self.stop = trio.Event()

    async def session(self, program: Program) -> "DeafJob":
        program.running()
        return self

    async def run(self) -> Ending:
        await self.stop.wait()
        return Ending(7, "exited")

    def resized(self) -> None:
        pass

    async def signal(self, number: int) -> None:
        try:
            await cannot_run()
        finally:
            self.tried.set()


async def test_a_signal_that_cannot_be_delivered_ends_no_session(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "log"), Log(), "c")
    job = DeafJob()
    with (tmp_path / "x").open("wb") as file, trio.fail_after(10):
        stdio = Stdio([os.dup(file.fileno()) for _ in range(3)], terminal=False)
        anchor = cast(Anchor, Signals(signal.SIGUSR1))
        session = LiveSession(1, journal, anchor, stdio, no_deposit())
        async with trio.open_nursery() as nursery:
            prepared = Prepared({}, is_known=True)
            nursery.start_soon(session.run, cast(Job, job), prepared)
            await job.tried.wait()
            await trio.testing.wait_all_tasks_blocked()
            job.stop.set()
    journal.close()
    assert session.ending == Ending(7, "exited")


async def test_nothing_begins_when_it_is_over() -> None:
    tasks = Tasks("c")
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    assert not tasks.begin(work)
    async with tasks.open():
        assert tasks.begin(work)
        await trio.testing.wait_all_tasks_blocked()
        tasks.end()
        assert not tasks.begin(work)
    assert not tasks.begin(work)
    assert done == [1]


async def test_a_fault_of_one_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    tasks = Tasks("container c")
    gone_on = False
    async with tasks.open():
        tasks.begin(fail)
        await trio.testing.wait_all_tasks_blocked()
        gone_on = True
    assert gone_on
    assert "container c: internal error: ZeroDivisionError" in caplog.text


async def test_an_exec_whose_container_ends_meanwhile_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends while its bundle is looked at, so there is nowhere left to run the program."""
    over = Tasks("c")
    journal = Journal(str(tmp_path / "log"), Log(), "c")
    inside = RunningContainer(cast(Job, None), cast(Bundle, None), cast(Staged, None), journal)
    monkeypatch.setattr(operations, "prepare", lambda *_: Prepared({"args": ["true"]}, True))

    class Unaudited:
        record = Record(id="c")

    class Ending:
        id = "c"
        paused = suspended = False
        programs = Execs(over, no_deposit())
        trail = Trail(cast(Ledger, Unaudited()), print, required=False)

        async def running(self, purpose: str) -> RunningContainer:
            return inside

    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        ours, theirs = socket.socketpair()
        with ours:
            stdio = Stdio([os.dup(ours.fileno()) for _ in range(3)], terminal=False)
            anchor = Anchor(theirs.detach())
            call = CommandLine(parse(["exec", "c", "true"]), 1, "/", ChildEnv({}))
            with pytest.raises(StateError, match="exec is not possible: it has ended"):
                await operations.execute(cast(Container, Ending()), call, anchor, stdio)
    assert len(os.listdir("/proc/self/fd")) == before
    journal.close()
