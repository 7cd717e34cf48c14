"""The sentences of Slurm's tools, each as it was said."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.supervisor.engines.slurm.grammar import Sentence, Tool, complaint, parse_line

# as 22.05.8, 24.11.5 or 26.05.5 said it, or as its program has it
SAID: list[tuple[str, Sentence, dict[str, str]]] = [
    ("salloc: Pending job allocation 7", Sentence.PENDING, {"job": "7"}),
    ("salloc: job 7 queued and waiting for resources", Sentence.PENDING, {"job": "7"}),
    ("salloc: job 7 has been allocated resources", Sentence.GRANTED, {"job": "7"}),
    ("salloc: Granted job allocation 7", Sentence.GRANTED, {"job": "7"}),
    ("salloc: error: Job submit/allocate failed: Invalid user id",
     Sentence.REFUSED, {"reason": "Invalid user id"}),
    ("salloc: Job allocation 7 has been revoked.", Sentence.REVOKED, {"job": "7"}),
    ("salloc: Job allocation 7 has been revoked", Sentence.REVOKED, {"job": "7"}),
    ("salloc: Job 7 has exceeded its time limit and its allocation has been revoked.",
     Sentence.TIME_LIMIT, {"job": "7"}),
    ("salloc: Job has been cancelled", Sentence.CANCELLED, {}),
    ("salloc: Relinquishing job allocation 7", Sentence.RELINQUISHED, {"job": "7"}),
    ("salloc: error: Unable to clean up job allocation JobId=7 SLUID=s6FDM84H1TMV00: x",  # 26.05
     Sentence.NOT_RELINQUISHED, {"job": "7"}),
    ("salloc: Exceeded job memory limit", Sentence.OVER_MEMORY, {}),
    ("salloc: error: Node failure on n1", Sentence.NODE_FAILURE, {"node": "n1"}),
    ("salloc: RPC rate limited 1 time(s). Sleeping then trying again.",
     Sentence.RATE_LIMITED, {}),
    ("srun: RPC rate limited 12 time(s). Sleeping then trying again.",
     Sentence.RATE_LIMITED, {}),
    ("srun: launching StepId=7.0 on host n1, 3 tasks: [0-2]",
     Sentence.LAUNCHING, {"step": "7.0", "node": "n1", "tasks": "[0-2]"}),
    ("srun: launch/slurm: _task_start: Node n1, 2 tasks started",  # 22.05
     Sentence.STARTED, {"count": "2"}),
    ("srun: Node n1, 2 tasks started", Sentence.STARTED, {"count": "2"}),
    ("srun: launch/slurm: _task_finish: Received task exit notification for 2 tasks of "
     "StepId=7.0 (status=0x0100).",
     Sentence.TASK_EXIT, {"count": "2", "step": "7.0", "status": "0100"}),
    ("srun: Received task exit notification for 1 task of StepId=7.0+1 (status=0x0009).",
     Sentence.TASK_EXIT, {"count": "1", "step": "7.0", "status": "0009"}),
    ("srun: n1: task 0: Completed", Sentence.TASK_ENDED, {"tasks": "0"}),
    ("srun: error: n[1-2]: tasks 0-1: Exited with exit code 4",
     Sentence.TASK_ENDED, {"tasks": "0-1"}),
    ("srun: error: Task launch for StepId=7.0 failed on node n1: No such file or directory",
     Sentence.LAUNCH_FAILED, {"step": "7.0", "node": "n1"}),
    ("srun: error: Unable to create step for job 7: Job is pending execution",
     Sentence.NO_STEP, {"job": "7", "reason": "Job is pending execution"}),
    ("scancel: error: Kill job error on job id 7: Invalid job id specified",
     Sentence.GONE, {"id": "7"}),
    ("scancel: error: Kill job error on job step id 7.0: "
     "Job/step already completing or completed",
     Sentence.GONE, {"id": "7.0"}),
    ("scancel: error: Kill job error on job step id 7.0: No error",
     Sentence.NO_ERROR, {"id": "7.0"}),
]  # fmt: skip


def tool_of(line: str) -> Tool:
    return cast(Tool, line.partition(":")[0])


@pytest.mark.parametrize(("line", "sentence", "words"), SAID)
def test_a_sentence(line: str, sentence: Sentence, words: dict[str, str]) -> None:
    said = parse_line(tool_of(line), line)
    assert said is not None
    assert (said.sentence, said.words) == (sentence, words)


@pytest.mark.parametrize("line", [line for line, *_ in SAID])
def test_only_the_whole_of_it_counts(line: str) -> None:
    """Whatever a plugin of the site's says gets the tool's own prefix."""
    tool = tool_of(line)
    text = line.removeprefix(f"{tool}: ").removeprefix("error: ")
    for before in ("note: ", f"{tool}: ", "error: note: "):
        assert parse_line(tool, f"{tool}: {before}{text}") is None
    assert parse_line(tool, text) is None
    assert parse_line(tool, f" {line}") is None


@pytest.mark.parametrize("line", [line for line, *_ in SAID if not complaint(tool_of(line), line)])
def test_nothing_may_follow(line: str) -> None:
    tool = tool_of(line)
    assert parse_line(tool, f"{line} (says the site)") is None
    assert parse_line(tool, f"{line}\n") is None


def test_complaints() -> None:
    """The last words of a tool are at the level `fatal`."""
    assert complaint("salloc", "salloc: error: no such partition") == "no such partition"
    assert complaint("salloc", "salloc: fatal: Cannot open slurm.conf") == "Cannot open slurm.conf"
    assert complaint("srun", "srun: fatal: No command given to execute.").startswith("No command")
    for line in ("srun: fatal: x", "salloc: x", "salloc: fatal", "salloc:  fatal: x"):
        assert not complaint("salloc", line)


@given(st.text())
def test_any_line(line: str) -> None:
    for tool in ("salloc", "srun", "scancel"):
        parse_line(tool, line)
        complaint(tool, line)
