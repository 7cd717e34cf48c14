"""What containers need to live outlives the process that has put it away."""

import errno
import itertools
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from scrun.core.errors import StateError
from scrun.core.rights import receive_fds
from scrun.supervisor.containers.adoption import by_jobs, in_turn
from scrun.supervisor.core.deposits import Deposit, Deposits, no_deposit
from scrun.supervisor.core.inheritance import (
    MADE,
    AdoptionGroup,
    Inheritance,
    KeeperLine,
    close_all,
    find,
)
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.daemon.keeper import Keeper
from scrun.supervisor.daemon.watchdog import Watchdog
from scrun.supervisor.keeper.main import LONGEST
from tests.harness.processes import descriptors
from tests.harness.users import other
from tests.harness.wait import wait_until


@asynccontextmanager
async def kept(deposits: Deposits) -> AsyncIterator[KeeperLine]:
    """Have a keeper, which calls nobody; yield the line to it."""
    told = trio.Event()
    async with unwrapped() as nursery:
        keeper = Keeper("/", "@x", deposits, 0, told.set, lingers=False)
        nursery.start_soon(keeper.run)
        deposits.needed.set()
        await told.wait()
        assert deposits.line is not None
        with KeeperLine(deposits.line.fds) as line:
            yield line
        nursery.cancel_scope.cancel()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    yield readable, writable
    os.close(readable)


def at_end(readable: int) -> bool:
    try:
        return os.read(readable, 100) == b""
    except BlockingIOError:
        return False


def only(found: list[Inheritance]) -> Inheritance:
    [one] = found
    return one


def found_in(line: KeeperLine) -> list[str]:
    """The names of what a keeper has; it has done all it was told before."""
    found = find(line)
    for one in found:
        one.close()
    return sorted(one.container for one in found)


def children() -> set[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}


_NUMBER = re.compile(rb'"number":(\d+)')


def nothing() -> None:
    """Do nothing."""


@contextmanager
def socketpair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@contextmanager
def unread() -> Iterator[KeeperLine]:
    """A line that nobody reads."""
    with socketpair() as (ours, _), KeeperLine([ours.fileno()]) as line:
        yield line


def fill(deposits: Deposits, deposit: Deposit) -> None:
    """Tell more than the keeper's socket takes, and some more."""
    for number in itertools.count(1):
        deposit.note(number=number)
        if not deposits.are_safe:
            break
    for more in range(1, 100):
        deposit.note(number=number + more)


def in_a_child(work: Callable[[], None]) -> None:
    """Run something in a process that is killed then."""
    pid = os.fork()
    if pid == 0:
        work()
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)


@pytest.mark.usefixtures("no_descriptor_stays")
async def test_it_is_found_after_a_kill_and_again() -> None:
    deposits = Deposits()
    readable, writable = os.pipe()
    os.set_blocking(readable, False)

    def put_away() -> None:
        deposit = deposits.new("c1")
        deposit.hold({"own.pipe": writable}, a=1)
        deposit.begin()
        deposit.note(b=[2])

    async with kept(deposits) as line:
        in_a_child(put_away)
        os.close(writable)
        for _ in range(2):
            found = only(find(line))
            assert (found.container, found.facts) == ("c1", {"a": 1, "b": [2]})
            os.write(found.fds["own.pipe"], b"x")
            found.close()
            assert os.read(readable, 10) == b"x"
            assert not at_end(readable)
    assert at_end(readable)
    os.close(readable)


async def test_what_is_dropped_has_an_end_of_file(pipe: tuple[int, int]) -> None:
    readable, writable = pipe
    deposits = Deposits()
    deposit = deposits.new("c1")
    deposit.begin()
    deposit.hold({"job.a": writable, "own.b": readable})
    os.close(writable)
    async with kept(deposits) as line:
        deposit.note(of="another one")
        assert found_in(line) == ["c1"]
        assert not at_end(readable)
        deposit.drop("job.")
        found = only(find(line))
        assert at_end(readable)
        assert [*found.fds] == ["own.b"]
        found.close()
        deposit.end()
        assert found_in(line) == []


async def test_a_job_is_found_with_its_containers_and_again(pipe: tuple[int, int]) -> None:
    readable, writable = pipe
    deposits, others = Deposits(), Deposits()
    job = deposits.new_of_job("c1")
    job.hold({"job.line": writable}, number="12")
    containers = [deposits.new(name) for name in ("c1", "c2")]
    for deposit in containers:
        deposit.needs(job)
        deposit.begin()
    os.close(writable)
    alone = deposits.new_of_job("c3")
    deposits.begin([alone])
    async with kept(deposits) as line, kept(others) as another:
        found = find(line)
        assert sorted(one.container for one in found if not one.is_of_job) == ["c1", "c2"]
        [together] = by_jobs(found)
        left = together[0].job
        assert left is not None
        assert left is together[1].job
        assert left.facts == {"number": "12"}
        again = [others.again(left), *(others.again(one) for one in together)]
        others.begin(again)
        for one in (*together, left):
            one.close()
        assert len(found_in(another)) == 3
        job.give_up("because")
        assert [deposit.why_not for deposit in containers] == ["because"] * 2
        for deposit in (*containers, alone):
            deposit.end()
        assert found_in(line) == []
        assert not at_end(readable)
        for deposit in again:
            deposit.end()
        assert found_in(another) == []
        assert at_end(readable)


async def test_what_begins_together_is_found_together() -> None:
    """The supervisor is killed between two messages."""
    deposits = Deposits()
    async with kept(deposits) as line:
        begun = [deposits.new(name) for name in ("c1", "c2")]

        def put_away() -> None:
            begun[1].open = lambda: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
            deposits.begin(begun)

        in_a_child(put_away)
        assert found_in(line) == []
        deposits.begin([begun[0]])
        assert found_in(line) == ["c1"]


async def test_a_program_is_found_with_its_container(pipe: tuple[int, int]) -> None:
    readable, writable = pipe
    deposits = Deposits()
    container = deposits.new("c1")
    assert container.of_program().why_not
    container.begin()
    programs = [container.of_program() for _ in range(2)]
    for program in programs:
        program.hold({"own.anchor": writable}, pid=1)
        program.begin()
    os.close(writable)
    async with kept(deposits) as line:
        programs[0].end()
        left = only(find(line))
        assert left.container == "c1"
        assert [program.facts["pid"] for program in left.programs] == [1]
        left.close()
        container.end()
        assert found_in(line) == []
        assert not at_end(readable)
        programs[1].end()
        assert found_in(line) == []
        assert at_end(readable)


async def test_all_that_are_together_wait_for_one_another() -> None:
    together = AdoptionGroup()
    for name in ("c1", "c2"):
        together.awaits(name)
    together.without("c1")
    together.without("c1")
    assert not together.complete.is_set()
    together.without("c2")
    assert together.complete.is_set()


def test_the_last_that_leaves_a_job_is_told() -> None:
    together = AdoptionGroup()
    for name in ("c1", "c2"):
        together.line_up(name)
    assert not together.leaves("c2")
    assert not together.leaves("c2")
    assert together.leaves("c1")


async def test_each_joins_the_job_after_those_before_it(autojump_clock: trio.abc.Clock) -> None:
    together, joined = AdoptionGroup(), list[str]()
    for name in ("c1", "c2", "c3"):
        together.line_up(name)

    async def join(name: str) -> None:
        await together.turn_of(name)
        joined.append(name)
        together.joins(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join, "c3")
        nursery.start_soon(join, "c2")
        await trio.sleep(1)
        assert joined == []
        together.joins("c1")
    assert joined == ["c2", "c3"]


def test_those_that_are_made_join_first_then_who_asked_for_the_job() -> None:
    job = Inheritance("c3/1", {}, {})
    names: dict[str, dict[str, object]] = {
        "c1": {},
        "c2": {MADE: {}},
        "c3": {},
        "c4": {MADE: {}},
    }
    found = [Inheritance(name, facts, {}, job) for name, facts in names.items()]
    assert [one.container for one in in_turn(found)] == ["c2", "c4", "c3", "c1"]


async def test_what_was_given_up_is_not_kept(pipe: tuple[int, int]) -> None:
    readable, writable = pipe
    deposits = Deposits()
    deposit = deposits.new("c1")
    deposit.hold({"a": writable})
    deposit.give_up("because")
    deposit.begin()
    assert not deposit.is_kept
    assert deposit.why_not == "because"
    too_long = deposits.new("c2")
    async with kept(deposits) as line:
        too_long.begin()
        too_long.note(text="x" * 1_000_000)
        assert "too long" in too_long.why_not
        assert found_in(line) == []
    os.close(writable)
    assert at_end(readable)
    assert not no_deposit().is_kept


async def test_another_keeper_is_told_all(pipe: tuple[int, int]) -> None:
    readable, writable = pipe
    deposits = Deposits()
    deposit = deposits.new("c1")
    deposit.hold({"own.one": writable})
    deposit.begin()
    os.close(writable)
    async with kept(deposits) as line:
        assert found_in(line) == ["c1"]
    assert not deposits.are_safe
    deposit.note(more=1)
    async with kept(deposits) as line:
        assert deposits.are_safe
        found = only(find(line))
        assert (found.facts, [*found.fds]) == ({"more": 1}, ["own.one"])
        found.close()
        assert not at_end(readable)
        deposit.end()


async def test_what_is_shared_or_made_takes_no_descriptor(pipe: tuple[int, int]) -> None:
    """Of thousands of idle containers each one counts."""
    readable, writable = pipe
    deposits, made = Deposits(), list[int]()

    @contextmanager
    def make() -> Iterator[int]:
        made.append(len(made))
        with open(os.memfd_create("made"), "wb+", buffering=0) as file:
            file.write(b"%d" % made[-1])
            yield file.fileno()

    deposit, before = deposits.new("c1"), descriptors()
    deposit.make("own.made", make)
    deposit.share({"own.pipe": writable})
    deposit.begin()
    assert descriptors() == before
    for _ in range(2):
        async with kept(deposits) as line:
            found = only(find(line))
            assert os.pread(found.fds["own.made"], 10, 0) == b"%d" % made[-1]
            os.write(found.fds["own.pipe"], b"x")
            found.close()
    assert os.read(readable, 10) == b"xx"
    assert made == [0, 1, 2]  # one for each keeper, and none there was at first
    async with kept(deposits) as line:
        deposit.drop("own.pipe")
        os.close(writable)
        found = only(find(line))
        assert [*found.fds] == ["own.made"]
        found.close()
        assert at_end(readable)
        deposit.end()


async def test_without_a_descriptor_for_what_is_made_the_next_keeper_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scrun.supervisor.daemon.keeper._PAUSE", 0.01)
    deposits, tries = Deposits(), list[int]()

    @contextmanager
    def make() -> Iterator[int]:
        tries.append(len(tries))
        if len(tries) == 2:  # the first is when it begins
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        yield 0

    deposit = deposits.new("c1")
    deposit.make("own.made", make)
    deposit.begin()
    async with kept(deposits) as line:
        assert found_in(line) == ["c1"]
        assert (deposit.is_kept, len(tries)) == (True, 3)
        deposit.end()


async def test_a_duplicate_goes_when_its_descriptor_is_shared(pipe: tuple[int, int]) -> None:
    """A successor begins with duplicates, before it knows who will own what was left."""
    readable, writable = pipe
    deposits = Deposits()
    deposit, before = deposits.new("c1"), descriptors()
    deposit.hold({"stdout": writable})
    deposit.begin()
    assert len(descriptors()) == len(before) + 1
    deposit.share({"stdout": writable})
    assert descriptors() == before
    deposit.hold({"stdout": writable})
    os.close(writable)
    assert not at_end(readable)
    deposit.end()
    assert at_end(readable)


async def test_a_keeper_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrun.supervisor.core.deposits._SLOW", 0.1)
    deposits = Deposits()
    deposit = deposits.new("c1")
    deposit.begin()
    with unread() as line, trio.fail_after(5):
        await deposits.connect(line, nothing)
        fill(deposits, deposit)
        await deposits.deliver()
        deposits.disconnect()
    async with kept(deposits) as line:
        found = only(find(line))
        assert found.facts == deposit.facts


async def test_a_keeper_that_is_stopped_stops_nobody_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To tell it to end took three seconds of the event loop."""
    monkeypatch.setattr("scrun.supervisor.core.deposits._SLOW", 0.3)
    deposits, before = Deposits(), children()
    deposit = deposits.new("c1")
    deposit.begin()
    async with kept(deposits):
        [stopped] = children() - before
        os.kill(stopped, signal.SIGSTOP)
        trio.lowlevel.add_instrument(Watchdog(str(tmp_path / "blocked")))
        fill(deposits, deposit)
        assert not deposits.are_safe
        with trio.fail_after(20):
            await deposits.be_safe()  # with the next one
        assert stopped not in children()
    assert not (tmp_path / "blocked").exists()


async def test_a_slow_keeper_stops_nobody_else(
    pipe: tuple[int, int], nursery: trio.Nursery
) -> None:
    """The event loop serves all containers of the user: 165 notes stopped it for three seconds."""
    readable, writable = pipe
    deposits, safe = Deposits(), []
    deposit = deposits.new("c1")
    deposit.begin()
    with socketpair() as (ours, theirs), KeeperLine([ours.fileno()]) as line, trio.fail_after(5):
        await deposits.connect(line, lambda: safe.append(deposits.are_safe))
        nursery.start_soon(deposits.deliver)
        begun = time.monotonic()
        fill(deposits, deposit)
        deposit.hold({"own.one": writable})
        os.close(writable)
        deposit.drop("own.one")  # a number that another file may have by now
        deposit.note(last=True)
        assert time.monotonic() - begun < 1
        assert safe == [True]
        with trio.move_on_after(0.05):
            await deposits.be_safe()
            raise AssertionError("it was safe in a socket that nobody reads")
        received: list[tuple[bytes, int]] = []
        theirs.setblocking(False)

        def receive() -> None:
            with suppress(BlockingIOError):
                while True:
                    message, fds, _ = receive_fds(theirs, LONGEST)
                    received.append((message, len(fds)))
                    close_all(fds)

        while not deposits.are_safe:
            await trio.lowlevel.wait_readable(theirs)
            receive()
        assert safe == [True, True]
        receive()
        numbers = [int(found[1]) for one, _ in received if (found := _NUMBER.search(one))]
        changes = [one for one, _ in itertools.groupby(numbers)]
        assert changes == [*range(1, changes[-1] + 1)]
        assert sum(count for _, count in received) == 1
        assert b'"last":true' in received[-1][0]
        assert at_end(readable)
        deposits.disconnect()


async def test_several_wait_for_room(nursery: trio.Nursery) -> None:
    """While what waits is delivered, containers are adopted: 1,000 were lost by that."""
    deposits = Deposits()
    deposit = deposits.new("c1")
    deposit.begin()
    with socketpair() as (ours, theirs), KeeperLine([ours.fileno()]) as line, trio.fail_after(5):
        await deposits.connect(line, nothing)
        nursery.start_soon(deposits.deliver)
        fill(deposits, deposit)
        await trio.testing.wait_all_tasks_blocked()
        theirs.setblocking(False)

        async def read() -> None:
            while True:
                await trio.lowlevel.wait_readable(theirs)
                theirs.recv(LONGEST)

        async with trio.open_nursery() as reading:
            async with trio.open_nursery() as waiting:
                for _ in range(2):
                    waiting.start_soon(deposits.room)
                await trio.testing.wait_all_tasks_blocked()
                reading.start_soon(read)
            await deposits.be_safe()
            reading.cancel_scope.cancel()
        deposits.disconnect()


# As an ordinary user: root may pass any number
_MANY = """
import os, resource, socket, sys, trio
from scrun.core.rights import send_fds
from scrun.supervisor.core.deposits import Deposits
from scrun.supervisor.core.inheritance import find
from scrun.supervisor.daemon.keeper import Keeper
from scrun.supervisor.daemon.watchdog import Watchdog
from scrun.supervisor.keeper.main import LONGEST
containers, each = map(int, sys.argv[1:])

async def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    deposits = Deposits()
    for number in range(containers):
        deposit = deposits.new(f"c{number}")
        deposit.hold({f"own.{name}": 0 for name in range(each)})
        deposit.begin()
    async with trio.open_nursery() as nursery:
        keeper = Keeper("/", "@x", deposits, 1, lambda: None, lingers=False)
        nursery.start_soon(keeper.run)
        await deposits.be_safe()
        here, there = socket.socketpair()
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        sent = send_fds(here, b"data", [0, 1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        found = find(deposits.line)
        print(sent, len(found), sum(len(one.fds) for one in found))
        nursery.cancel_scope.cancel()

trio.run(main)
"""


def test_other_programs_may_pass_descriptors() -> None:
    """The kernel counts those on their way, and allows no more than may be open."""
    done = subprocess.run(
        [*other().prefix, sys.executable, "-c", _MANY, "400", "10"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout + done.stderr == "4 400 4000\n"


async def test_more_are_found_than_may_usually_be_open() -> None:
    deposits = Deposits()
    for number in range(20):
        deposit = deposits.new(f"c{number}")
        deposit.hold({f"own.{name}": 0 for name in range(10)})
        deposit.begin()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with kept(deposits) as line:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(descriptors()) + 50, limits[1]))
        try:
            assert len(found_in(line)) == 20
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("room", [0, 1, 2, 5, 23, 50])
async def test_without_descriptors_none_stays(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks again would find fewer each time."""
    monkeypatch.setattr(
        "scrun.supervisor.core.inheritance.raise_open_files", lambda: None
    )  # the most
    deposits = Deposits()
    for number in range(20):
        deposit = deposits.new(f"c{number}")
        deposit.hold({"own.one": 0, "own.two": 1, "own.three": 2})
        deposit.begin()
    async with kept(deposits) as line:
        before = set(descriptors())
        free = (number for number in itertools.count() if str(number) not in before)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = next(itertools.islice(free, room, None))
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                find(line)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        # a thread closes those of regular files
        wait_until("they are closed", lambda: set(descriptors()) == before, 5)
        line.sock.shutdown(socket.SHUT_RDWR)  # it has more to send, and would wait for a reader


@pytest.mark.usefixtures("no_descriptor_stays")
async def test_what_a_newer_version_has_left_is_not_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deposits = Deposits()
    readable, writable = os.pipe()
    deposit = deposits.new("c1")
    deposit.hold({"own.pipe": writable})
    deposits.begin([deposit])
    async with kept(deposits) as line:
        for version in ("0.0.1", None):
            with monkeypatch.context() as older:
                if version is not None:
                    older.setattr("scrun.core.supervisors.is_newer.__defaults__", (version,))
                    with pytest.raises(StateError, match="install the newer one again"):
                        find(line)
                else:
                    assert found_in(line) == ["c1"]
        deposit.end()
    os.close(readable)
    os.close(writable)


async def test_a_job_rests_between_its_containers(pipe: tuple[int, int]) -> None:
    readable, writable = pipe
    deposits = Deposits()
    job, step = deposits.new_of_job("c1"), os.dup(writable)
    async with kept(deposits) as line:
        for number, name in enumerate(("c1", "c2")):
            container = deposits.new(name)
            if number == 0:
                job.hold({"job.line": writable}, job="1")
                job.hold({"step.in": step}, hello={})
            container.needs(job)
            container.begin()
            job.note(site=name)
            found = find(line)
            [of_job, own] = sorted(found, key=lambda one: one.is_of_job, reverse=True)
            assert own.job is of_job
            assert of_job.facts == {"job": "1", "hello": {}, "site": name}
            assert sorted(of_job.fds) == ["job.line", "step.in"]
            for one in found:
                one.close()
            container.end()
            job.rest()
            if number == 0:  # it may close what it has: the job has its own
                os.close(writable)
                os.close(step)
            assert found_in(line) == []  # while nobody has it
        job.hold({"step.in": readable})
        job.drop("step.")
        last = deposits.new("c3")
        last.needs(job)
        last.begin()
        [found_job] = [one for one in find(line) if one.is_of_job]
        assert [*found_job.fds] == ["job.line"]
        found_job.close()
        assert not at_end(readable)
        job.rest()
        job.drop("job.")
        last.end()
        assert found_in(line) == []
        assert at_end(readable)


def test_a_job_that_cannot_be_kept_cannot_be_for_the_next_one_either() -> None:
    deposits = Deposits()
    job = deposits.new_of_job("c1")
    job.hold({"job.line": 0})
    job.give_up("over srun")
    job.rest()
    container = deposits.new("c2")
    container.needs(job)
    assert container.why_not == "over srun"
