"""What salloc and srun say, understood. Pure.

Slurm's tools have no machine-readable messages; these are matched by the words that have been
the same from 22.05 on. What is not understood changes nothing.
"""

import os
import re
from signal import SIGKILL

import msgspec

from scrun.states import Ending, exited, taken
from supervisor.runtimes import program_failure

_PREFIX = re.compile(r"^(salloc|srun): (error: )?")
_JOB = re.compile(r"(?:[Jj]ob allocation|^job) (\d{1,10})(?!\d)", re.ASCII)
_REFUSED = re.compile(r"Job submit/allocate failed: (.*)")
_NODE_FAILURE = re.compile(r"Node failure on (\S+)")
_LAUNCHING = re.compile(r"launching StepId=(\d{1,10}\.\d{1,10})(?!\d)", re.ASCII)
_ON_HOST = re.compile(r"on host (\S+), \d+ tasks: ([\d,[\]-]+)", re.ASCII)
_STARTED = re.compile(r"(\d{1,9}) tasks started", re.ASCII)
_UNKNOWN_FAILURE = 0x0100
# slurm/slurm.h, SIG_OOM: the low byte of a task's status when the kernel killed one of the step's
# processes for want of memory, whichever it was; its own status is not told then (22.05)
_OUT_OF_MEMORY = 253
_KILLED = 128 + SIGKILL
_STATUS = re.compile(r"\(status=0x([0-9a-fA-F]+)\)")
_KEPT = 20  # error messages: srun may repeat one for days
_COUNT = re.compile(r"notification for (\d{1,9}) tasks", re.ASCII)
_ENDED = re.compile(r"^srun: .*: tasks? ([\d,[\]-]+): ", re.ASCII)


class SallocHeard:
    """What salloc has said so far.

    Attributes:
        job_id: The job's id, "" while unknown; pending jobs have one.
        granted: The allocation was there at some time.
        revoked: It was taken away.
        gone: Slurm knows that it ended, whoever ended it.
        over_memory: A step of it was killed because it had more memory than it may have
            (JobAcctGatherParams=OverMemoryKill).
        refusal: Why there was none, or "".
        complaints: Its error messages.
    """

    def __init__(self) -> None:
        """Nothing was said yet."""
        self.job_id = ""
        self.granted = False
        self.revoked = False
        self.gone = False
        self.over_memory = False
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
        elif text == "Exceeded job memory limit":
            self.over_memory = True
        elif "has been revoked" in text or "has been cancelled" in text:
            self.revoked = True
        if self.revoked or text.startswith("Relinquishing job allocation") or self.refusal:
            self.gone = True
        elif "clean up job allocation" in text:  # slurmctld did not answer to the relinquishing
            self.gone = False
        if line.startswith("salloc: error: "):
            _keep(self.complaints, text)

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
        started: All its tasks run.
        statuses: The wait statuses of tasks that ended (as waitpid(2) returns them), each once.
        missing: How many tasks did not tell theirs.
        launch_failed: A node could not begin; srun ends the other ones' tasks then.
        aborted: The step was ended from outside, or its job before it; more will be heard from
            salloc.
        complaints: Its error messages, but for those that only repeat a task's exit status.
        runtime_status: 127 or 126 when the OCI runtime said that the program is not there or
            cannot be executed: slurmstepd reports a failure of the runtime as 1.
    """

    def __init__(self, tasks: int = 1) -> None:
        """Nothing was said yet.

        Args:
            tasks: How many there will be.
        """
        self.step_id = ""
        self.statuses: list[int] = []
        self.missing = tasks
        self.launch_failed = False
        self.aborted = False
        self.complaints: list[str] = []
        self.runtime_status: int | None = None
        self._tasks = tasks
        self._not_started = tasks
        self._hosts: dict[str, list[int]] = {}
        self._ended: set[int] = set()

    @property
    def started(self) -> bool:
        """Whether all tasks run, or ran."""
        return self._not_started <= 0

    @property
    def running(self) -> dict[str, list[int]]:
        """Where tasks are that have not ended: their numbers on each node, from 0."""
        found = {}
        for host, tasks in self._hosts.items():
            left = [local for local, task in enumerate(tasks) if task not in self._ended]
            if left:
                found[host] = left
        return found

    def hear_runtime(self, content: bytes | bytearray) -> None:
        """Take in what arrived on the container's standard error, where the runtime is first."""
        status = program_failure(content.decode(errors="replace"))
        self.runtime_status = self.runtime_status or status

    def hear(self, line: str) -> bool:
        """Take one line in; tell whether it is a complaint."""
        ended = _ENDED.search(line)
        if launching := _LAUNCHING.search(line):
            self.step_id = launching[1]
            if (host := _ON_HOST.search(line)) and len(self._hosts) < self._tasks:
                self._hosts[host[1]] = _numbers(host[2], self._tasks)
        elif started := _STARTED.search(line):
            self._not_started -= int(started[1])
        elif "task exit notification" in line and (status := _STATUS.search(line)):
            several = _COUNT.search(line)
            self._end_of_tasks(int(several[1]) if several else 1, int(status[1], 16))
        elif "Task launch for" in line and "failed on node" in line:
            self.launch_failed = True
        elif ended:
            self._ended.update(_numbers(ended[1], self._tasks))
        elif any(words in line for words in _ABORTED):
            self.aborted = True
        if not line.startswith("srun: error: ") or ended:
            return False
        _keep(self.complaints, line.removeprefix("srun: error: "))
        return True

    def _end_of_tasks(self, count: int, status: int) -> None:
        """Keep a status; one that waitpid(2) has not, as NO_VAL or a stop, is a failure."""
        known = status <= 0xFFFF and (os.WIFEXITED(status) or os.WIFSIGNALED(status))
        status = status if known else _UNKNOWN_FAILURE
        if status not in self.statuses:
            self.statuses.append(status)
        self.missing -= count


def _keep(complaints: list[str], text: str) -> None:
    complaints.append(text)
    del complaints[:-_KEPT]


def _numbers(text: str, tasks: int) -> list[int]:
    """Read a list of tasks: `3`, `[0-1]`, `0,2-4`; nothing from what is none, or of no task.

    Args:
        text: The list.
        tasks: How many there are.
    """
    found: dict[int, None] = {}
    for first, last in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", text, re.ASCII):
        if len(found) < tasks:
            found.update(dict.fromkeys(range(int(first), min(int(last or first) + 1, tasks))))
    return [*found]


_ABORTED = (
    "Job step aborted",
    "forcing job termination",
    "Force Terminated",
    "Node failure on",
    "Timed out waiting for job step",
    "CANCELLED AT",
    # there was no step yet, and there is no job any more
    "has expired",
    "Job/step already completing or completed",
    "Invalid job id specified",
)


class Exit(msgspec.Struct, frozen=True):
    """How a step ended.

    Attributes:
        status: The exit status of its container, 128+n for signals; the highest of several.
        launched: Whether it ran at all.
        out_of_memory: Whether the kernel killed a process of it for want of memory.
    """

    status: int
    launched: bool
    out_of_memory: bool = False


def step_exit(heard: SrunHeard, srun_status: int) -> Exit:
    """Derive the container's exit status from what srun said and returned.

    The tasks' own wait statuses are exact, and the highest one counts. srun's exit status is not:
    0 for a step that was ended with its job, 130 for a bundle that is missing (seen with 22.05).
    """
    floor = max(srun_status, 1)  # of what is no success, whatever srun returned
    if heard.launch_failed:
        return Exit(floor, launched=False)
    if heard.statuses:
        lack = any(status & 0xFF == _OUT_OF_MEMORY for status in heard.statuses)
        codes = [_exit_code(status) for status in heard.statuses]
        if heard.missing > 0 and (heard.aborted or srun_status):
            codes.append(floor)  # some succeeded, and nobody knows how the others ended
        return Exit(max(codes), launched=True, out_of_memory=lack)
    if heard.started and not heard.aborted:
        return Exit(srun_status if srun_status >= 0 else 128 - srun_status, launched=True)
    return Exit(floor, launched=heard.started)


def ending_of_step(heard: SrunHeard, ended: Exit, salloc: SallocHeard | None = None) -> Ending:
    """Return how a container, or what was executed in one, ended by its step.

    Args:
        heard: What srun has said.
        ended: What `step_exit` made of it.
        salloc: What salloc has said of the job, if it is ours. It does not say which step it
            means, so only one that was killed is.
    """
    too_large = salloc is not None and salloc.over_memory and ended.status == _KILLED
    if not (ended.out_of_memory or too_large):
        return exited(ended.status)
    job_id = heard.step_id.partition(".")[0]
    return taken(
        "out-of-memory",
        f"job {job_id}: out of memory, a process was killed: ask for more with "
        "SCRUN_MEM_PER_NODE or the engine's --memory",
    )


def _exit_code(status: int) -> int:
    if status & 0xFF == _OUT_OF_MEMORY:
        return _KILLED
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
