"""What blocks an event loop is told, and what only takes its time is not."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
import trio

from scrun.supervisor.daemon import watchdog
from scrun.supervisor.daemon.watchdog import VARIABLE, watchdogs
from tests.harness.wait import wait_until

LONG = 0.4


def reads_a_pipe() -> None:
    readable, writable = os.pipe()
    with subprocess.Popen(["sleep", str(LONG)], pass_fds=(writable,)):
        os.close(writable)
        os.read(readable, 1)
    os.close(readable)


def waits_for_a_program() -> None:
    subprocess.run(["sleep", str(LONG)], check=True)


def waits_for_a_thread() -> None:
    thread = Thread(target=time.sleep, args=(LONG,))
    thread.start()
    thread.join()


class Late(Thread):
    """One that gets a processor late."""

    def _bootstrap_inner(self) -> None:
        time.sleep(LONG)
        super()._bootstrap_inner()  # type: ignore[misc]


def computes() -> None:
    until = time.thread_time() + LONG
    while time.thread_time() < until:
        pass


def told(path: Path, call: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The last lines of the stacks that were told while a loop called something."""
    monkeypatch.setenv(VARIABLE, str(path))

    async def main() -> None:
        await trio.sleep(0.01)
        call()
        await trio.sleep(0.01)

    trio.run(main, instruments=watchdogs())
    lines = path.read_text().splitlines() if path.exists() else []
    return ["".join(json.loads(line)["stack"]) for line in lines]


@pytest.mark.parametrize("call", [reads_a_pipe, waits_for_a_program, waits_for_a_thread])
def test_what_blocks(
    call: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [stack] = told(tmp_path / "told", call, monkeypatch)
    assert f"in {call.__name__}\n" in stack


def test_a_loop_that_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(tmp_path / "told", computes, monkeypatch) == []


def test_beside_threads_that_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop waits for the interpreter then: that is no call of its own."""
    threads = [Thread(target=computes) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert told(tmp_path / "told", computes, monkeypatch) == []
    for thread in threads:
        thread.join()


def test_a_processor_that_another_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_stolen", time.monotonic)
    assert told(tmp_path / "told", waits_for_a_program, monkeypatch) == []


def test_a_thread_that_gets_a_processor_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Late()
    assert told(tmp_path / "told", thread.start, monkeypatch) == []
    thread.join()


def test_after_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program does then keeps nobody waiting."""
    assert told(tmp_path / "told", lambda: None, monkeypatch) == []
    waits_for_a_program()
    assert not (tmp_path / "told").exists()


def test_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert watchdogs() == []


def test_a_process_that_is_stopped(tmp_path: Path) -> None:
    program = (
        "import trio; from scrun.supervisor.daemon.watchdog import watchdogs\n"
        "async def main():\n"
        "    while True:\n"
        "        await trio.sleep(0.001)\n"
        "print(flush=True)\n"
        "trio.run(main, instruments=watchdogs())\n"
    )
    environment = {**os.environ, VARIABLE: str(tmp_path / "told")}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        state = Path(f"/proc/{process.pid}/stat")
        for _ in range(5):
            process.send_signal(signal.SIGSTOP)
            wait_until("the stop", lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
            time.sleep(0.15)  # what would be told, takes 50 ms
            process.send_signal(signal.SIGCONT)
            time.sleep(0.02)
        process.kill()
    assert not (tmp_path / "told").exists()
