"""What Slurm, the nodes and runtimes say, that ended more than a question to them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import trio

from scrun.core.errors import EngineError
from scrun.supervisor.children.pumps import Output
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.engine import NodeAnswer
from scrun.supervisor.engines.slurm.job_state import JobState, StepState
from scrun.supervisor.engines.slurm.remote import read_answers
from scrun.supervisor.reapers import site_commands as minder
from scrun.supervisor.sessions.inspection import read_list, statistics, total
from tests.harness.limits import limited


def test_srun_with_tasks_that_there_are_not() -> None:
    state = StepState(4)
    with limited(1, 20):
        for host in range(1000):
            tasks = "0-999999," * 100
            state.feed(f"srun: launching StepId=1.0 on host n{host}, 2 tasks: {tasks}")
            state.feed(f"srun: error: n{host}: tasks {tasks[:-1]}: Killed")
    assert state.running == {}


def test_srun_that_repeats_itself_for_days() -> None:
    state, salloc = StepState(), JobState()
    for number in range(10_000):
        assert state.feed(f"srun: error: no answer {number}")
        state.feed(
            "srun: Received task exit notification for 1 task of StepId=1.0 (status=0x0100)."
        )
        salloc.feed(f"salloc: error: no answer {number}")
    assert state.complaints == [f"no answer {number}" for number in range(9980, 10_000)]
    assert len(salloc.complaints) == 20
    assert state.statuses == [0x100]


@pytest.mark.parametrize("number", ["\u0661\u0662", "1" * 11])
def test_numbers_of_jobs_that_are_none(number: str) -> None:
    salloc, srun = JobState(), StepState()
    salloc.feed(f"salloc: Granted job allocation {number}")
    srun.feed(f"srun: launching StepId={number}.0 on host n, 1 tasks: 0")
    assert (salloc.job_id, srun.step_id) == ("", "")


def test_what_a_step_prints_that_is_not_ascii() -> None:
    assert read_answers(["0: begin n", "0: \u00e9", "0: end"]) == []


@pytest.mark.parametrize(
    "text",
    [
        "units 1" + "0" * 5000 + " 1 1.0\n",
        "units 1 " + "9" * 5000 + " 1.0\n",
        "units 1 1 " + "9" * 5000 + ".0\n",
    ],
)
def test_numbers_that_are_too_long(text: str) -> None:
    with pytest.raises(EngineError):
        total([NodeAnswer("n", 0, text)])
    with pytest.raises(EngineError):
        read_list(NodeAnswer("n", 0, "host a\npids\n" + "9" * 5000 + "\ntable\n"))


def test_a_line_of_proc_that_is_none() -> None:
    usage = total([NodeAnswer("n", 0, "units 100 4096 1.00\n1 (a) S" + " x" * 40 + "\n")])
    assert (usage.memory, usage.user) == (0, 0)


def test_output_that_is_too_much() -> None:
    """How many processes a container has, and how they are called, is for it to say."""
    output = Output(1 << 20)
    with limited(2, 10):
        for _ in range(100_000):
            output.take("root 1 x" * 100)
    with pytest.raises(EngineError, match="too many"):
        _ = output.lines


class _Node:
    environment: ClassVar[dict[str, str]] = {}

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        return [NodeAnswer("node", 0, "units 100 4096 1.00\n")]


@pytest.mark.parametrize("resources", [{"memory": 5}, {"memory": "x"}, {"memory": {"limit": "x"}}])
def test_statistics_of_resources_that_are_none(resources: dict[str, object]) -> None:
    async def ask() -> bytes:
        return await statistics(_Node(), "c", resources)  # type: ignore[arg-type]

    assert "limit" not in json.loads(trio.run(ask))["data"]["memory"]


@pytest.mark.parametrize(
    ("state", "status"),
    [('{"pid": "x"}', 0), ('{"pid": [1]}', 0), ('{"pid": -1}', 0), ("[" * 100_000, 1), ("", 1)],
)
def test_a_runtime_whose_state_is_none(tmp_path: Path, state: str, status: int) -> None:
    (tmp_path / "state").write_text(state)
    log = tmp_path / "log"
    words = ["-1", str(log), "true", "true", f"cat {tmp_path}/state"]
    command = [sys.executable, minder.__file__, *words]
    assert subprocess.run(command, timeout=30, check=False).returncode == status
    assert log.exists() is bool(status)


def test_a_last_word_that_is_not_utf8() -> None:
    readable, writable = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    stdio = Stdio([null, os.dup(null), writable], terminal=False)
    stdio.say("/b/\udcff is gone")
    stdio.close()
    assert os.read(readable, 100) == b"scrun: /b/\\udcff is gone\n"
    os.close(readable)
