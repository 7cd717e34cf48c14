"""What containers need to live outlives the process that has put it away."""

import itertools
import os
import resource
from collections.abc import Callable, Iterator

import pytest

from scrun.core.errors import StateError
from scrun.supervisor.containers.adoption import by_jobs
from scrun.supervisor.core.deposits import Deposits, Found, Together, find, no_deposit
from tests.harness.processes import descriptors


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


def only(found: list[Found]) -> Found:
    [one] = found
    return one


def in_a_child(work: Callable[[], None]) -> None:
    """Run something in a process that is killed then."""
    pid = os.fork()
    if pid == 0:
        work()
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)


@pytest.mark.usefixtures("no_descriptor_stays")
def test_it_is_found_after_a_kill_and_again() -> None:
    deposits = Deposits()
    held = deposits.held
    readable, writable = os.pipe()
    os.set_blocking(readable, False)

    def put_away() -> None:
        deposit = deposits.new("c1")
        deposit.hold({"own.pipe": writable}, a=1)
        deposit.begin()
        deposit.note(b=[2])

    in_a_child(put_away)
    os.close(writable)
    assert not at_end(readable)
    for _ in range(2):
        found = only(find(held))
        assert (found.container, found.facts) == ("c1", {"a": 1, "b": [2]})
        os.write(found.fds["own.pipe"], b"x")
        found.close()
        assert os.read(readable, 10) == b"x"
        assert not at_end(readable)
    deposits.close()
    assert at_end(readable)
    os.close(readable)


def test_what_is_dropped_has_an_end_of_file(pipe: tuple[int, int]) -> None:
    readable, writable = pipe
    deposits = Deposits()
    deposit = deposits.new("c1")
    deposit.begin()
    deposit.hold({"job.a": writable, "own.b": readable})
    os.close(writable)
    assert not at_end(readable)
    deposit.drop("job.")
    assert at_end(readable)
    found = only(find(deposits.held))
    assert [*found.fds] == ["own.b"]
    found.close()
    deposit.end()
    assert find(deposits.held) == []
    deposits.close()


def test_a_job_is_found_with_its_containers_and_again(pipe: tuple[int, int]) -> None:
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
    found = find(deposits.held)
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
    assert len(find_and_close(others.held)) == 3
    job.give_up("because")
    assert [deposit.why_not for deposit in containers] == ["because"] * 2
    for deposit in (*containers, alone):
        deposit.end()
    assert not at_end(readable)
    for deposit in again:
        deposit.end()
    assert at_end(readable)
    deposits.close()
    others.close()


def test_a_program_is_found_with_its_container(pipe: tuple[int, int]) -> None:
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
    programs[0].end()
    left = only(find(deposits.held))
    assert left.container == "c1"
    assert [program.facts["pid"] for program in left.programs] == [1]
    left.close()
    container.end()
    assert not at_end(readable)
    assert find(deposits.held) == []
    programs[1].end()
    assert at_end(readable)
    deposits.close()


def find_and_close(held: int) -> list[str]:
    found = find(held)
    for one in found:
        one.close()
    return [one.container for one in found]


async def test_all_that_are_together_wait_for_one_another() -> None:
    together = Together()
    for name in ("c1", "c2"):
        together.awaits(name)
    together.without("c1")
    together.without("c1")
    assert not together.complete.is_set()
    together.without("c2")
    assert together.complete.is_set()


def test_what_was_given_up_is_not_kept(pipe: tuple[int, int]) -> None:
    readable, writable = pipe
    deposits = Deposits()
    deposit = deposits.new("c1")
    deposit.hold({"a": writable})
    deposit.give_up("because")
    deposit.begin()
    assert not deposit.is_kept
    assert deposit.why_not == "because"
    assert find(deposits.held) == []
    os.close(writable)
    assert at_end(readable)
    assert not no_deposit().is_kept
    deposits.close()


def test_hundreds() -> None:
    """A socket takes some hundred messages; these become fewer."""
    deposits = Deposits()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    try:
        kept = [deposits.new(f"c{number}") for number in range(400)]
        for deposit in kept:
            deposit.begin()
        for deposit in kept[::2]:
            deposit.end()
        found = sorted(one.container for one in find(deposits.held))
        assert found == sorted(f"c{number}" for number in range(1, 400, 2))
        for deposit in kept:
            deposit.end()
        deposits.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


@pytest.mark.parametrize("room", [0, 1, 2, 5, 23, 60])
def test_without_descriptors_none_stays(room: int) -> None:
    """Who looks again would find fewer each time."""
    deposits = Deposits()
    kept = [deposits.new(f"c{number}") for number in range(20)]
    for deposit in kept:
        deposit.hold({"own.one": 0, "own.two": 1})
        deposit.begin()
    before = set(descriptors())
    free = (number for number in itertools.count() if str(number) not in before)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = next(itertools.islice(free, room, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            find(deposits.held)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert set(descriptors()) == before
    for found in find(deposits.held):
        found.close()
    assert set(descriptors()) == before
    for deposit in kept:
        deposit.end()
    deposits.close()


@pytest.mark.usefixtures("no_descriptor_stays")
def test_what_a_newer_version_has_left_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Deposits()
    readable, writable = os.pipe()
    deposit = kept.new("c1")
    deposit.hold({"own.pipe": writable})
    kept.begin([deposit])
    for version in ("0.0.1", None):
        with monkeypatch.context() as older:
            if version is not None:
                older.setattr("scrun.core.supervisors.is_newer.__defaults__", (version,))
                with pytest.raises(StateError, match="install the newer one again"):
                    find(kept.held)
            else:
                only(find(kept.held)).close()
    deposit.end()
    kept.close()
    os.close(readable)
    os.close(writable)
