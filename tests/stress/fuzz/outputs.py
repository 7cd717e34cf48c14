"""What programs say: Slurm's, runtimes, scripts beside a container."""

import base64
import re

from scrun.core.errors import EngineError, SettingsError
from scrun.model.waiting import annotations_of, waiting_line
from scrun.settings.slurm.versions import parse_version
from scrun.supervisor.children.pumps import Output
from scrun.supervisor.contracts.engine import NodeAnswer
from scrun.supervisor.engines.failures import program_failure, read_log
from scrun.supervisor.engines.slurm.job_ending import parse_sacct, parse_squeue
from scrun.supervisor.engines.slurm.job_state import JobState, StepState, ending_of_step, step_exit
from scrun.supervisor.engines.slurm.pending import read_waiting
from scrun.supervisor.engines.slurm.remote import read_answers
from scrun.supervisor.sessions.inspection import read_list, rows_of, total
from scrun.supervisor.shim.site import state_of
from tests.stress.fuzz.base import check_error, lines_of

_NOW = 1_800_000_000.0


_TASKS = 4


def salloc(data: bytes) -> None:
    state = JobState()
    for line in lines_of(data):
        state.feed(line)
    assert not state.job_id or (state.job_id.isascii() and state.job_id.isdigit())
    # a job is known, and lost, by Slurm's own sentences alone, and those name it
    assert not state.job_id or any(
        line.startswith("salloc: ") and re.search(rf"\b{state.job_id}\b", line)
        for line in lines_of(data)
    )
    assert not state.revoked or state.job_id
    for noise in ("salloc: note: ", "salloc: error: note: "):
        silent = JobState()
        for line in lines_of(data):
            silent.feed(noise + line)
        assert (silent.job_id, silent.gone, silent.granted) == ("", False, False)
    assert state.ending.status
    assert state.ending.text
    assert state.reason
    assert len(state.complaints) <= 20


def srun(data: bytes) -> None:
    state = StepState(_TASKS)
    for line in lines_of(data):
        state.feed(line)
        state.feed_stderr(line.encode())
    assert len(state.running) <= _TASKS
    assert all(0 <= task < _TASKS for tasks in state.running.values() for task in tasks)
    assert len(state.complaints) <= 20
    for status in (0, 1, 137, 255, -9):
        ended = step_exit(state, status)
        assert 0 <= ended.status <= 255
        assert 0 <= ending_of_step(state, ended).status <= 255
        assert ended.status or state.started or state.statuses
    program_failure(data.decode(errors="replace"))


def squeue(data: bytes) -> None:
    """The answers of squeue and sacct."""
    text = data.decode(errors="replace")
    waiting = read_waiting(text, _NOW)
    if waiting is not None:
        assert waiting_line("1", waiting, now=_NOW, explained=True)
        assert annotations_of(waiting)
    for ending in (parse_squeue(text, "1", 1e9), parse_sacct(text, "1", 1e9)):
        assert ending is None or ending.status


def version(data: bytes) -> None:
    """What `salloc --version` prints."""
    try:
        found = parse_version(data.decode(errors="replace"))
    except SettingsError as error:
        check_error(error)
        return
    assert parse_version(f"slurm {found}") == found


def inspected(data: bytes) -> None:
    """What the small step on the nodes prints."""
    output = Output()
    for line in lines_of(data):
        output.take(line)
    for answer in read_answers(output.lines):
        assert 0 <= answer.status <= 999
        _told_by(answer)


def beside(data: bytes) -> None:
    """What the scripts beside a container print, in which are names that it has chosen."""
    text = data.decode(errors="replace")
    _told_by(NodeAnswer("node1", 0, text))
    wrapped = base64.b64encode(data + b"status 0\n").decode()
    lines = ["0: begin node1", *(f"0: {wrapped[i : i + 76]}" for i in range(0, len(wrapped), 76))]
    assert read_answers([*lines, "0: end"]) == [NodeAnswer("node1", 0, text)]


def _told_by(answer: NodeAnswer) -> None:
    try:
        seen = read_list(answer)
        rows = rows_of(seen.text, seen.pids)
        assert len(rows) <= 1 + seen.text.count("\n")
    except EngineError as error:
        check_error(error)
    try:
        usage = total([answer])
        assert min(usage.user, usage.kernel, usage.memory, usage.threads) >= 0
    except EngineError as error:
        check_error(error)


def runtime(data: bytes) -> None:
    """What an OCI runtime says: its state, and its log."""
    assert isinstance(state_of(data), dict)
    error, others = read_log(data)
    error.encode(errors="replace")
    assert len(others) <= len(data)
    program_failure(data.decode(errors="replace"))
