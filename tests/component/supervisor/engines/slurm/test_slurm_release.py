"""A job that salloc could not give back is cancelled in the end, whatever stands in the way."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from scrun.settings.file.load import Log
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.engines.slurm import allocation
from scrun.supervisor.engines.slurm.allocation import cancel_in_the_end
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.log.journal import Journal
from tests.harness import users

SETTING = ChildEnv({"PATH": users.PATH})


class Scancel:
    """A scancel that answers as it is told, once for each call; then it succeeds."""

    def __init__(self, directory: Path) -> None:
        self._calls = directory / "calls"
        self._answers = directory / "answers"
        self._calls.touch()
        self._answers.touch()
        program = directory / "scancel"
        program.write_text(
            f'#!/bin/sh\necho "$@" >> {self._calls}\nn=$(grep -c . {self._calls})\n'
            f'line=$(sed -n "$n"p {self._answers})\n[ -z "$line" ] && exit\n'
            'echo "$line" >&2\nexit 1\n'
        )
        program.chmod(0o755)
        self.tools = Tools("salloc", ("srun",), str(program), None, ())
        self.journal = Journal(str(directory / "log"), Log(), "c1")
        self.log = directory / "log"

    def answers(self, *lines: str) -> None:
        self._answers.write_text("".join(f"{line}\n" for line in lines))

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()

    async def cancel(self) -> None:
        with trio.fail_after(20):
            await cancel_in_the_end(self.tools, SETTING, self.journal, "7")


@pytest.fixture
def scancel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scancel:
    monkeypatch.setattr(allocation, "_FIRST_PAUSE", 0.01)
    return Scancel(tmp_path)


async def test_it_is_tried_until_slurm_answers(scancel: Scancel) -> None:
    no_answer = "scancel: error: Kill job error on job id 7: Unable to contact slurm controller"
    scancel.answers(no_answer, no_answer)
    await scancel.cancel()
    assert scancel.calls == ["7", "7", "7"]
    log = scancel.log.read_text()
    assert "job 7 may still be there: Kill job error on job id 7: Unable to contact" in log
    assert "trying again in 0.01 s" in log
    assert "trying again in 0.02 s" in log


@pytest.mark.parametrize(
    "why", ["Invalid job id specified", "Job/step already completing or completed"]
)
async def test_one_that_is_gone_is_cancelled(scancel: Scancel, why: str) -> None:
    scancel.answers(f"scancel: error: Kill job error on job id 7: {why}")
    await scancel.cancel()
    assert scancel.calls == ["7"]


async def test_a_line_that_only_has_slurms_words_in_it_is_no_answer(scancel: Scancel) -> None:
    scancel.answers("scancel: error: prolog: Invalid job id specified in /etc/x")
    await scancel.cancel()
    assert scancel.calls == ["7", "7"]


@pytest.mark.parametrize("error", [BlockingIOError(11, "no more processes"), OSError(24, "files")])
async def test_it_is_tried_until_there_is_a_process_for_it(
    scancel: Scancel, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    real: Callable[..., Any] = subprocess.Popen
    left = [error, error]

    def popen(*args: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return real(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    await scancel.cancel()
    assert scancel.calls == ["7"]
    assert "job 7 may still be there: " in scancel.log.read_text()


async def test_a_fault_of_our_own_is_told(
    scancel: Scancel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(*args: Any, **options: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True, allow_unwrapped=True):
        await scancel.cancel()
