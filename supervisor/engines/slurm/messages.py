"""What salloc and srun say, understood. Pure.

Slurm's tools have no machine-readable messages; these are matched by the words that have been
the same from 22.05 on. What is not understood changes nothing.
"""

import os
import re

import msgspec

from scrun.states import Ending, taken
from supervisor.runtimes import program_failure

_PREFIX = re.compile(r"^(salloc|srun): (error: )?")
_JOB = re.compile(r"(?:[Jj]ob allocation|^job) (\d+)")
_REFUSED = re.compile(r"Job submit/allocate failed: (.*)")
_NODE_FAILURE = re.compile(r"Node failure on (\S+)")
_LAUNCHING = re.compile(r"launching StepId=(\d+\.\d+)")
_UNKNOWN_FAILURE = 0x0100
_STATUS = re.compile(r"\(status=0x([0-9a-fA-F]+)\)")


class SallocHeard:
    """What salloc has said so far.

    Attributes:
        job_id: The job's id, "" while unknown; pending jobs have one.
        granted: The allocation was there at some time.
        revoked: It was taken away.
        gone: Slurm knows that it ended, whoever ended it.
        refusal: Why there was none, or "".
        complaints: Its error messages.
    """

    def __init__(self) -> None:
        """Nothing was said yet."""
        self.job_id = ""
        self.granted = False
        self.revoked = False
        self.gone = False
        self.refusal = ""
        self.complaints: list[str] = []
        self._time_limit = False
        self._failed_node = ""

    def hear(self, line: str) -> None:
        """Take one line in."""
        text = _PREFIX.sub("", line)
        if (job := _JOB.search(text)) and not self.job_id:
            self.job_id = job[1]
        if text.startswith("Granted job allocation"):
            self.granted = True
        elif refused := _REFUSED.search(text):
            self.refusal = refused[1]
        elif failed := _NODE_FAILURE.search(text):
            self._failed_node = failed[1]
        elif "exceeded its time limit" in text:
            self._time_limit = self.revoked = True
        elif "has been revoked" in text or "has been cancelled" in text:
            self.revoked = True
        if self.revoked or text.startswith("Relinquishing job allocation") or self.refusal:
            self.gone = True
        elif "clean up job allocation" in text:  # slurmctld did not answer to the relinquishing
            self.gone = False
        if line.startswith("salloc: error: "):
            self.complaints.append(text)

    @property
    def ending(self) -> Ending:
        """How the container ended that ran in the revoked allocation."""
        if self._failed_node:
            return taken(
                "node-failure", f"job {self.job_id} ended: node {self._failed_node} failed"
            )
        if self._time_limit:
            return taken("time-limit", f"job {self.job_id} ended: its time limit was reached")
        return taken("cancelled", f"job {self.job_id} was cancelled")

    @property
    def reason(self) -> str:
        """Why there is no allocation, in one line."""
        if self.revoked:  # then the refusal only says that the job is over
            return f"job {self.job_id} was cancelled while it waited for resources"
        if self.refusal:
            return self.refusal
        return "; ".join(self.complaints) or "salloc ended without a reason"


class SrunHeard:
    """What srun (with -v) has said so far about its step.

    Attributes:
        step_id: JOB.STEP, "" until the step is launched.
        started: Its tasks run.
        statuses: The wait statuses of tasks that ended (as waitpid(2) returns them).
        aborted: The step was ended from outside; more will be heard from salloc.
        complaints: Its error messages, but for those that only repeat a task's exit status.
        runtime_status: 127 or 126 when the OCI runtime said that the program is not there or
            cannot be executed: slurmstepd reports a failure of the runtime as 1.
    """

    def __init__(self) -> None:
        """Nothing was said yet."""
        self.step_id = ""
        self.started = False
        self.statuses: list[int] = []
        self.aborted = False
        self.complaints: list[str] = []
        self.runtime_status: int | None = None

    def hear_runtime(self, content: bytes | bytearray) -> None:
        """Take in what arrived on the container's standard error, where the runtime is first."""
        status = program_failure(content.decode(errors="replace"))
        self.runtime_status = self.runtime_status or status

    def hear(self, line: str) -> None:
        """Take one line in."""
        if launching := _LAUNCHING.search(line):
            self.step_id = launching[1]
        elif line.endswith("tasks started"):
            self.started = True
        elif "task exit notification" in line and (status := _STATUS.search(line)):
            self._end_of_task(int(status[1], 16))
        elif any(words in line for words in _ABORTED):
            self.aborted = True
        if line.startswith("srun: error: ") and ": task " not in line:
            self.complaints.append(line.removeprefix("srun: error: "))

    def _end_of_task(self, status: int) -> None:
        """Keep a status; one that waitpid(2) has not, as NO_VAL or a stop, is a failure."""
        known = status <= 0xFFFF and (os.WIFEXITED(status) or os.WIFSIGNALED(status))
        self.statuses.append(status if known else _UNKNOWN_FAILURE)


_ABORTED = (
    "Job step aborted",
    "forcing job termination",
    "Force Terminated",
    "Node failure on",
    "Timed out waiting for job step",
    "CANCELLED AT",
)


class Exit(msgspec.Struct, frozen=True):
    """How a step ended.

    Attributes:
        status: The exit status of its container, 128+n for signals; the highest of several.
        launched: Whether it ran at all.
    """

    status: int
    launched: bool


def step_exit(heard: SrunHeard, srun_status: int) -> Exit:
    """Derive the container's exit status from what srun said and returned.

    The task's own wait status is exact. srun's exit status is not: 0 for a step that was ended
    with its job, 130 for a bundle that is missing (seen with 22.05).
    """
    if heard.statuses:
        codes = [os.waitstatus_to_exitcode(status) for status in heard.statuses]
        return Exit(max(128 - code if code < 0 else code for code in codes), launched=True)
    if heard.started and not heard.aborted:
        return Exit(srun_status if srun_status >= 0 else 128 - srun_status, launched=True)
    return Exit(srun_status if srun_status > 0 else 1, launched=heard.started)
