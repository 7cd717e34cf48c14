"""The keeper sleeps as a shell, wakes, and calls a successor until one has everything."""

import os
import signal
from pathlib import Path

import pytest
import trio

from scrun.core.ready import ready
from scrun.supervisor.core.deposits import Deposits
from scrun.supervisor.core.inheritance import KeeperLine, find
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.daemon.keeper import Keeper
from tests.harness.processes import descendants
from tests.harness.wait import wait_until, wait_while

_IN_VAIN = """
import os, sys
with open(sys.argv[1] + "/called", "a") as file:
    print(os.getppid(), file=file)
sys.exit(1)
"""

# It fails once; what it has got is in a file, with what can be read there.
_CALLED = """
import os, sys
from scrun.supervisor.core.inheritance import find
from scrun.supervisor.core.inheritance import KeeperLine
for left in find(KeeperLine([0])):
    os.write(left.fds["own.pipe"], b"x")
    with open(sys.argv[1] + "/called", "a") as file:
        print(left.container, left.facts, file=file)
sys.exit(os.stat(sys.argv[1] + "/called").st_size < 20)
"""


def is_asleep(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().startswith(b"/bin/sh")


def below(pid: int) -> list[int]:
    return [each for each in descendants(pid) if "scrun-keeper" in cmdline(each)]


def cmdline(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def sleeps(keeper: int) -> None:
    await trio.to_thread.run_sync(wait_until, "the shell", lambda: is_asleep(keeper))


async def has_its_name(keeper: int) -> None:
    comm = Path(f"/proc/{keeper}/comm")
    await trio.to_thread.run_sync(wait_until, "it", lambda: comm.read_text() == "scrun-keeper\n")


async def the_keeper() -> int:
    [keeper] = await trio.to_thread.run_sync(wait_until, "it", lambda: below(os.getpid()))
    return keeper


async def test_it_sleeps_and_has_everything_when_it_wakes() -> None:
    deposits, told = Deposits(), trio.Event()
    readable, writable = os.pipe()
    deposit, other = deposits.new("c1"), deposits.new("c2")
    for each in (deposit, other):
        each.hold({"own.pipe": writable}, name=each.name)
        each.begin()
    os.close(writable)
    async with unwrapped() as nursery:
        nursery.start_soon(Keeper("/", "@x", deposits, 1, told.set, lingers=False).run)
        await told.wait()
        keeper = await the_keeper()
        for number in range(3):
            await sleeps(keeper)
            await has_its_name(keeper)
            assert "scrun-keeper\0/\0" in cmdline(keeper)  # and its directory of records
            assert len(cmdline(keeper)) < 300, "no program"
            deposit.note(number=number)
            assert deposits.line is not None
            with KeeperLine(deposits.line.fds) as line:
                found = {left.container: left for left in find(line)}
            assert found["c1"].facts == {"name": "c1", "number": number}
            assert found["c2"].facts == {"name": "c2"}
            for left in found.values():
                assert [*left.fds] == ["own.pipe"]
                left.close()
            assert not is_asleep(keeper)
            await has_its_name(keeper)
            assert len(cmdline(keeper)) < 300, "no program"
        await sleeps(keeper)
        for each in (deposit, other):
            assert not ready([readable], seconds=0)[0]
            each.end()
        with trio.fail_after(20):
            await trio.lowlevel.wait_readable(readable)
        assert os.read(readable, 1) == b""
        assert below(os.getpid()) == [keeper]
        nursery.cancel_scope.cancel()
    os.close(readable)


async def test_it_opens_nothing_more_whenever_it_wakes() -> None:
    """A shell that had no low number for its program left that open: one more each time."""
    deposits, told = Deposits(), trio.Event()
    deposit, other = deposits.new("c1"), deposits.new("c2")
    null = os.open("/dev/null", os.O_RDONLY)
    other.hold({f"own.{number}": null for number in range(12)})
    other.begin()
    os.close(null)
    async with unwrapped() as nursery:
        nursery.start_soon(Keeper("/", "@x", deposits, 1, told.set, lingers=False).run)
        await told.wait()
        keeper, counts = await the_keeper(), []
        for number in range(3):
            await sleeps(keeper)
            counts.append(len(os.listdir(f"/proc/{keeper}/fd")))
            deposit.note(number=number)
            deposit.begin()
            await trio.to_thread.run_sync(wait_while, "asleep", lambda: is_asleep(keeper))
        assert len({*counts}) == 1, counts
        for each in (deposit, other):
            each.end()
        nursery.cancel_scope.cancel()


def killed(root: Path, pipe: int, seconds: float, *, asleep: bool = False) -> int:
    """Begin a supervisor that keeps a pipe, and kills itself; return its pid."""

    async def put_away() -> None:
        deposits, told = Deposits(), trio.Event()
        deposit = deposits.new("c1")
        deposit.hold({"own.pipe": pipe}, a=1)
        deposit.begin()
        async with trio.open_nursery() as nursery:
            keeper = Keeper(str(root), "@x", deposits, seconds, told.set, lingers=False)
            nursery.start_soon(keeper.run)
            await told.wait()
            if asleep:
                await sleeps(await the_keeper())
            os.kill(os.getpid(), signal.SIGKILL)

    supervisor = os.fork()
    if supervisor == 0:
        try:
            trio.run(put_away)
        finally:
            os._exit(1)
    return supervisor


@pytest.mark.parametrize("asleep", [False, True])
def test_it_calls_until_somebody_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asleep: bool
) -> None:
    monkeypatch.setattr("scrun.supervisor.daemon.keeper._PROGRAM", _CALLED)
    readable, writable = os.pipe()

    supervisor = killed(tmp_path, writable, 60, asleep=asleep)
    os.close(writable)
    assert os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1]) == -signal.SIGKILL
    with open(readable, "rb") as pipe:
        assert pipe.read() == b"xx"  # to its end: the keeper has let go
    wait_until("two calls", lambda: (tmp_path / "called").read_text() == "c1 {'a': 1}\n" * 2)


def test_it_calls_for_some_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes it over: then what it holds ends, and it does not stay for ever."""
    monkeypatch.setattr("scrun.supervisor.daemon.keeper._PROGRAM", _IN_VAIN)
    readable, writable = os.pipe()
    monkeypatch.setattr("scrun.supervisor.daemon.keeper._LIMIT", 0)
    supervisor = killed(tmp_path, writable, 1)
    os.close(writable)
    os.waitpid(supervisor, 0)
    is_over = bool(ready([readable], seconds=10)[0])
    calls = (tmp_path / "called").read_text().split()
    if not is_over:
        os.kill(int(calls[0]), signal.SIGKILL)
    os.close(readable)
    assert is_over
    assert len(calls) > 1
