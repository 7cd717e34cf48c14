"""What Slurm tells a step by signals reaches the programs of its containers."""

import signal
import time

import pytest

from scrun.supervisor.shim.processes import handles
from tests.component.supervisor.shim.conftest import MakeShim, connected
from tests.harness.processes import descendants
from tests.harness.shim import Shim
from tests.harness.wait import wait_until

TOLD = (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGQUIT)
SAYS = "".join(
    f"trap 'echo {number.name}' {number.name[3:]};" for number in (*TOLD, 15 and signal.SIGTERM)
)
RUNS = f"{SAYS} echo up; while :; do sleep 0.01; done"
SAVES = (
    "trap 'echo saving; sleep 0.7; echo saved; exit 3' TERM; echo up; while :; do sleep 0.01; done"
)


def said(shim: Shim, stream: int, *words: str) -> None:
    """Wait until a program has said exactly that."""
    shim.until(" ".join(words), lambda: shim.output[stream].decode().split() == [*words])


def begun(shim: Shim, target: str, script: str) -> int:
    """Run a script, which says `up`; return the stream of its output."""
    streams = shim.streams("stdout")
    shim.run(target, "sh", "-c", script, streams=streams)
    # a signal that it is owed may come with that
    shim.until("up", lambda: b"up\n" in shim.output[streams["stdout"]])
    return streams["stdout"]


def test_each_container_gets_each_once(shim: Shim) -> None:
    streams = [begun(shim, name, RUNS) for name in ("a", "b")]
    names = ["up"]
    for number in (*TOLD, signal.SIGTERM):
        shim.process.send_signal(number)
        names.append(number.name)
        for stream in streams:
            said(shim, stream, *names)
    time.sleep(0.3)
    for stream in streams:
        said(shim, stream, *names)
    assert not shim.has_ended("a")


def test_before_it_is_started(shim: Shim) -> None:
    """What comes while the first one is staged or created is for its program; once, in order."""
    for number in (signal.SIGUSR2, signal.SIGUSR1):
        shim.process.send_signal(number)
        time.sleep(0.1)
    streams = shim.streams("stdout")
    assert "pid" in shim.create("a", "sh", "-c", RUNS, streams=streams)
    for number in (signal.SIGUSR1, signal.SIGINT):
        shim.process.send_signal(number)
        time.sleep(0.1)
    assert shim.call("start", id="a") == {}
    said(shim, streams["stdout"], "up", "SIGUSR2", "SIGUSR1", "SIGINT")
    later = begun(shim, "b", RUNS)
    time.sleep(0.2)
    said(shim, later, "up")


def test_nothing_is_there_for_it(shim: Shim) -> None:
    """Between two containers of a job that is kept, nobody wants it, and it harms nothing."""
    shim.run("a", "true")
    shim.ended("a")
    shim.call("delete", id="a")
    for number in (*TOLD, signal.SIGTERM):
        shim.process.send_signal(number)
    later = begun(shim, "b", RUNS)
    time.sleep(0.2)
    said(shim, later, "up")


def test_where_slurm_signals_all_processes(make_shim: MakeShim) -> None:
    shim = connected(make_shim, reaches_all=True)
    stream = begun(shim, "a", RUNS)
    shim.process.send_signal(signal.SIGUSR1)
    time.sleep(0.3)
    said(shim, stream, "up")


@pytest.mark.parametrize("late", [0.0, 0.2])
def test_it_may_save_its_state_without_srun(make_shim: MakeShim, late: float) -> None:
    """srun and the supervisor in a batch script are ended by the same cancellation."""
    shim = make_shim()
    begun(shim, "a", SAVES)
    begun(shim, "b", "echo up; while :; do sleep 0.01; done")
    assert shim.process.stdin is not None
    if not late:
        shim.process.send_signal(signal.SIGTERM)
    shim.process.stdin.close()
    time.sleep(late)
    if late:
        shim.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert shim.process.wait(20) in (3, 137)
    assert 0.4 < time.monotonic() - began < 10


def test_no_longer_than_slurm_would_wait(make_shim: MakeShim) -> None:
    shim = make_shim(begin={"kill_wait": 1})
    begun(shim, "a", "trap '' TERM; echo up; while :; do sleep 0.01; done")
    shim.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert shim.close()[0] in (1, 137)
    assert 0.9 < time.monotonic() - began < 10


def test_without_srun_it_ends(make_shim: MakeShim) -> None:
    """Nothing is left of a container whose supervisor was killed, if the job goes on."""
    shim = make_shim()
    begun(shim, "a", SAVES)
    began = time.monotonic()
    assert shim.close()[0] in (1, 137)
    assert time.monotonic() - began < 5


def test_whether_a_signal_is_handled(shim: Shim) -> None:
    assert "pid" in shim.create("a", "sh", "-c", SAVES)
    assert shim.call("handles", id="a", number=15) == {"handles": False}
    assert shim.call("start", id="a") == {}

    def asked(number: int) -> bool:
        return bool(shim.call("handles", id="a", number=number)["handles"])

    wait_until("it handles SIGTERM", lambda: asked(15))
    assert not asked(10)
    assert "error" in shim.call("handles", id="b", number=15)
    assert not handles(1 << 22, 15)
    assert descendants(shim.process.pid)


def test_nobody_comes_back_when_the_job_ends(make_shim: MakeShim) -> None:
    """slurmstepd does not tell of the end of srun, so only the direct connection breaks."""
    shim = connected(make_shim, kill_wait=30)
    begun(shim, "a", "echo up; while :; do sleep 0.01; done")
    shim.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    shim.die()
    began = time.monotonic()
    assert shim.process.wait(20) in (1, 137)
    assert time.monotonic() - began < 8


def test_what_ended_an_earlier_shim(make_shim: MakeShim) -> None:
    shim = make_shim(begin={"told": [signal.SIGUSR2, signal.SIGUSR1]})
    streams = shim.streams("stdout")
    shim.run("a", "sh", "-c", RUNS, streams=streams)
    said(shim, streams["stdout"], "up", "SIGUSR2", "SIGUSR1")


def test_one_end_of_the_job_is_told_once(shim: Shim) -> None:
    """Slurm says it twice within a millisecond."""
    stream = begun(shim, "a", RUNS)
    for _ in range(3):
        shim.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    time.sleep(0.3)
    said(shim, stream, "up", "SIGTERM")
    time.sleep(1)
    shim.process.send_signal(signal.SIGTERM)
    said(shim, stream, "up", "SIGTERM", "SIGTERM")


def test_programs_of_exec_get_them(shim: Shim) -> None:
    """As the tasks of a step of their own do."""
    first = begun(shim, "a", RUNS)
    streams = shim.streams("stdout")
    assert "pid" in shim.exec("e", "a", "sh", "-c", RUNS, streams=streams)
    names = ["up"]
    said(shim, streams["stdout"], *names)
    for number in (*TOLD, signal.SIGTERM):
        shim.process.send_signal(number)
        names.append(number.name)
        for stream in (first, streams["stdout"]):
            said(shim, stream, *names)
    assert not shim.has_ended("e")


def test_a_program_of_exec_that_begins_gets_no_old_ones(shim: Shim) -> None:
    first = begun(shim, "a", RUNS)
    shim.process.send_signal(signal.SIGUSR1)
    said(shim, first, "up", "SIGUSR1")
    streams = shim.streams("stdout")
    assert "pid" in shim.exec("e", "a", "sh", "-c", RUNS, streams=streams)
    said(shim, streams["stdout"], "up")
    shim.process.send_signal(signal.SIGUSR2)
    said(shim, streams["stdout"], "up", "SIGUSR2")


def test_a_program_of_exec_may_save_its_state_without_srun(make_shim: MakeShim) -> None:
    shim = make_shim(begin={"kill_wait": 20})
    begun(shim, "a", "trap '' TERM; echo up; sleep 600")
    streams = shim.streams("stdout")
    assert "pid" in shim.exec("e", "a", "sh", "-c", SAVES, streams=streams)
    said(shim, streams["stdout"], "up")
    assert shim.call("handles", id="e", number=15) == {"handles": True}
    shim.process.send_signal(signal.SIGTERM)
    said(shim, streams["stdout"], "up", "saving")
    said(shim, streams["stdout"], "up", "saving", "saved")
    assert shim.ended("e") == 3


def test_a_container_that_is_expected(shim: Shim) -> None:
    """It is still staged, beside another one or in a job that waited for it."""
    first = begun(shim, "a", RUNS)
    shim.process.send_signal(signal.SIGHUP)
    said(shim, first, "up", "SIGHUP")
    assert shim.call("expect", names=["name-b", "name-c"]) == {}
    for number in (signal.SIGUSR2, signal.SIGUSR1):
        shim.process.send_signal(number)
        said(shim, first, *shim.output[first].decode().split(), number.name)
    assert shim.call("expect", names=["name-b", "name-d"]) == {}
    shim.process.send_signal(signal.SIGINT)
    said(shim, first, "up", "SIGHUP", "SIGUSR2", "SIGUSR1", "SIGINT")
    streams = {name: begun(shim, name, RUNS) for name in "bcd"}
    said(shim, streams["b"], "up", "SIGUSR2", "SIGUSR1", "SIGINT")
    said(shim, streams["d"], "up", "SIGINT")
    time.sleep(0.2)
    said(shim, streams["c"], "up")


def test_the_first_ones_that_are_expected(shim: Shim) -> None:
    """They were there before the shim: what came before it knew of them is for them."""
    for number in (signal.SIGUSR2, signal.SIGUSR1):
        shim.process.send_signal(number)
        time.sleep(0.1)
    assert shim.call("expect", names=["name-a", "name-b"]) == {}
    assert shim.call("expect", names=["name-a", "name-b", "name-c"]) == {}
    streams = {name: begun(shim, name, RUNS) for name in "abc"}
    for name in "ab":
        said(shim, streams[name], "up", "SIGUSR2", "SIGUSR1")
    time.sleep(0.2)
    said(shim, streams["c"], "up")


def test_a_container_that_is_expected_and_there_already(shim: Shim) -> None:
    """The call was on its way meanwhile; the next container of that name is another one."""
    first = begun(shim, "a", RUNS)
    assert shim.call("expect", names=["name-a"]) == {}
    shim.process.send_signal(signal.SIGUSR1)
    said(shim, first, "up", "SIGUSR1")
    shim.call("delete", id="a")
    later = shim.streams("stdout")
    shim.run("a2", "sh", "-c", RUNS, streams=later, name="name-a")
    said(shim, later["stdout"], "up")
    time.sleep(0.2)
    said(shim, later["stdout"], "up")


@pytest.mark.parametrize("first", ["slurm", "supervisor"])
def test_the_end_of_a_batch_script_is_told_once(shim: Shim, first: str) -> None:
    """`scrun run` is told there, too, and its supervisor passes that on."""
    stream = begun(shim, "a", RUNS)
    ways = [
        lambda: shim.process.send_signal(signal.SIGTERM),
        lambda: shim.call("signal", id="a", number=15, all=False),
    ]
    for way in ways if first == "slurm" else reversed(ways):
        way()
        said(shim, stream, "up", "SIGTERM")
    time.sleep(0.3)
    said(shim, stream, "up", "SIGTERM")


def test_two_requests_to_end_are_two(shim: Shim) -> None:
    stream = begun(shim, "a", RUNS)
    names = ["up"]
    for _ in range(2):
        assert shim.call("signal", id="a", number=15, all=False) == {}
        names.append("SIGTERM")
        said(shim, stream, *names)
