"""The messages of salloc and srun so far, and how a step ended by them. Pure."""

import os
import re
from signal import SIGKILL

import msgspec

from scrun.model.states import Ending, exited, taken
from scrun.oci.signals import its_end
from scrun.supervisor.children.processes import exit_code, shell_status
from scrun.supervisor.engines.failures import program_failure
from scrun.supervisor.engines.slurm.grammar import (
    OVER,
    Sentence,
    ToolMessage,
    complaint,
    is_slowed,
    parse_line,
)

_UNKNOWN_FAILURE = 0x0100
_MOST = 20  # error messages: srun may repeat one for days


class JobState:
    """The state of a job, from the messages of salloc.

    A line counts for the job that it names. If salloc seems to ask for several jobs, the last one
    counts: messages of a site's plugins at submission come before Slurm's own.

    Attributes:
        job_id: The job's id, "" while unknown; pending jobs have one.
        granted: Whether the job was granted at some time.
        over_memory: Whether one of its steps was killed for using too much memory
            (JobAcctGatherParams=OverMemoryKill).
        suspended: Whether an administrator or the scheduler has suspended it.
        slowed: Whether salloc waits because slurmctld limits its user's requests.
        refusal: Why Slurm refused it, or "".
        status: That of salloc, or the negative number of the signal that killed it.
    """

    def __init__(self) -> None:
        self.status = 0
        self.job_id = ""
        self.granted = False
        self.over_memory = False
        self.suspended = False
        self.slowed = False
        self.refusal = ""
        self.complaints: list[str] = []
        self._certain = False
        self._revoked: list[str] = []
        self._over_time: list[str] = []
        self._relinquished = False
        self._failed_node = ""

    @property
    def revoked(self) -> bool:
        return bool(self.job_id) and self.job_id in self._revoked

    @property
    def is_queued(self) -> bool:
        """Whether it has an id, and no nodes yet."""
        return bool(self.job_id) and not self.granted

    @property
    def gone(self) -> bool:
        """Whether Slurm knows that the job has ended, whoever ended it."""
        return self.revoked or self._relinquished or bool(self.refusal)

    @property
    def withdrawn(self) -> bool:
        """Whether the job was revoked while it was pending, and not refused."""
        return self.revoked and self.refusal in ("", *OVER)

    def is_job(self, job_id: str) -> None:
        """Set the job's id from a better source: the environment of what salloc runs in it."""
        self.job_id = job_id
        self.granted = self._certain = True

    def feed(self, line: str) -> None:
        parsed = parse_line("salloc", line)
        self.slowed = is_slowed(parsed)
        text = complaint("salloc", line)
        if text and (parsed is None or parsed.sentence is not Sentence.REFUSED):
            _keep(self.complaints, text)
        if parsed is None:
            return
        words, job_id = parsed.words, parsed.words.get("job", self.job_id)
        match parsed.sentence:
            case Sentence.PENDING | Sentence.GRANTED if not self._certain:
                self.job_id = job_id
                self.granted = parsed.sentence is Sentence.GRANTED
            case Sentence.REFUSED:
                self.refusal = words["reason"]
            case Sentence.REVOKED:
                _keep(self._revoked, job_id)
            case Sentence.TIME_LIMIT:
                _keep(self._revoked, job_id)
                _keep(self._over_time, job_id)
            case Sentence.CANCELLED if not self.granted:
                _keep(self._revoked, self.job_id)
            case Sentence.RELINQUISHED if job_id == self.job_id:
                self._relinquished = True
            case Sentence.NOT_RELINQUISHED if job_id == self.job_id:  # slurmctld did not answer
                self._relinquished = False
            case Sentence.OVER_MEMORY:
                self.over_memory = True
            case Sentence.SUSPENDED | Sentence.RESUMED if self._certain:
                self.suspended = parsed.sentence is Sentence.SUSPENDED
            case Sentence.NODE_FAILURE:
                self._failed_node = words["node"]

    @property
    def ending(self) -> Ending:
        """How the container of the revoked job ended."""
        if self._failed_node:
            return taken(
                "node-failure", f"job {self.job_id} ended: node {self._failed_node} failed"
            )
        if self.job_id in self._over_time:
            return taken("time-limit", f"job {self.job_id} ended: its time limit was reached")
        return taken("cancelled", f"job {self.job_id} was cancelled")

    @property
    def reason(self) -> str:
        """Why there is no allocation, in one line."""
        details = "; ".join(self.complaints)
        if self.withdrawn:
            return f"job {self.job_id} was cancelled while it waited for resources"
        if self.refusal:
            return f"{self.refusal}: {details}" if details else self.refusal
        said = f"salloc {its_end(self.status)}" if self.status < 0 else ""
        return details or said or "salloc ended without a reason"


class StepState:
    """The state of a step, from the messages of srun -v.

    Attributes:
        step_id: JOB.STEP, "" until the step is launched.
        started: Whether all its tasks run, or ran.
        statuses: The wait statuses of ended tasks (as waitpid(2) returns them), without
            duplicates.
        missing: The number of tasks without a wait status so far.
        launch_failed: A node failed to start its tasks; srun then ends those of other nodes.
        aborted: The step was ended from outside, or its job ended before it; salloc will report
            the cause.
        complaints: Its error messages, without those that only repeat a task's exit status.
        slowed: Whether srun waits because slurmctld limits its user's requests.
        runtime_status: 127 or 126 if the OCI runtime reported that the program does not exist or
            cannot be executed: slurmstepd reports a failure of the runtime as 1.
    """

    def __init__(self, tasks: int = 1) -> None:
        self.step_id = ""
        self.statuses: list[int] = []
        self.missing = tasks
        self.launch_failed = False
        self.aborted = False
        self.complaints: list[str] = []
        self.slowed = False
        self.runtime_status: int | None = None
        self._tasks = tasks
        self._not_started = tasks
        self._hosts: dict[str, list[int]] = {}
        self._ended: set[int] = set()

    def reason(self, status: int) -> str:
        """Why nothing runs, as far as srun said, which ended with `status`."""
        said = "; ".join(self.complaints[-3:]) or f"srun {its_end(status)}"
        if said.endswith(OVER):
            said += ": is SLURM_JOB_ID that of a job that has ended? then unset it"
        return said

    @property
    def started(self) -> bool:
        return self._not_started <= 0 and not self.launch_failed

    @property
    def running(self) -> dict[str, list[int]]:
        """The tasks that have not ended: their numbers on each node, from 0."""
        found = {}
        for host, tasks in self._hosts.items():
            left = [local for local, task in enumerate(tasks) if task not in self._ended]
            if left:
                found[host] = left
        return found

    def feed_stderr(self, content: bytes | bytearray) -> None:
        """Process data from the container's standard error, where the runtime writes first."""
        status = program_failure(content.decode(errors="replace"))
        self.runtime_status = self.runtime_status or status

    def feed(self, line: str) -> bool:
        """Process one line; return whether it is a new error message."""
        parsed = parse_line("srun", line)
        self.slowed = is_slowed(parsed)
        if parsed is not None:
            self._take(parsed)
        text = complaint("srun", line)
        if not text or (parsed is not None and parsed.sentence is Sentence.TASK_ENDED):
            return False
        _keep(self.complaints, text)
        return True

    def _take(self, parsed: ToolMessage) -> None:
        words = parsed.words
        match parsed.sentence:
            case Sentence.LAUNCHING:
                self.step_id = words["step"]
                if len(self._hosts) < self._tasks:
                    self._hosts[words["node"]] = _numbers(words["tasks"], self._tasks)
            case Sentence.STARTED:
                self._not_started -= int(words["count"])
            case Sentence.TASK_EXIT:
                self._end_of_tasks(int(words["count"]), int(words["status"], 16))
            case Sentence.TASK_ENDED:
                self._ended.update(_numbers(words["tasks"], self._tasks))
            case Sentence.LAUNCH_FAILED:
                self.launch_failed = True
            case Sentence.ABORTED | Sentence.NODE_FAILURE:
                self.aborted = True
            case Sentence.NO_STEP if words["reason"] in OVER:
                self.aborted = True

    def _end_of_tasks(self, count: int, status: int) -> None:
        """Store a status; one that waitpid(2) cannot return, such as NO_VAL, is a failure."""
        known = status <= 0xFFFF and (os.WIFEXITED(status) or os.WIFSIGNALED(status))
        status = status if known else _UNKNOWN_FAILURE
        if status not in self.statuses:
            self.statuses.append(status)
        self.missing -= count


def _keep(complaints: list[str], text: str) -> None:
    complaints.append(text)
    del complaints[:-_MOST]


def _numbers(text: str, tasks: int) -> list[int]:
    """Parse a list of tasks: `3`, `[0-1]`, `0,2-4`; ignore other text, and numbers too high."""
    found: dict[int, None] = {}
    for first, last in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", text, re.ASCII):
        if len(found) < tasks:
            found.update(dict.fromkeys(range(int(first), min(int(last or first) + 1, tasks))))
    return [*found]


# slurm/slurm.h, SIG_OOM: the low byte of a task's status when the kernel killed any process of the
# step for want of memory; the task's own status is lost then (22.05)
_OUT_OF_MEMORY = 253
_KILLED = 128 + SIGKILL


class Exit(msgspec.Struct, frozen=True):
    """How a step ended.

    Attributes:
        status: The exit status of its container, 128+n for signals; the highest of several.
        launched: Whether it ran at all.
        out_of_memory: Whether the kernel killed one of its processes for want of memory.
    """

    status: int
    launched: bool
    out_of_memory: bool = False


def step_exit(state: StepState, srun_status: int) -> Exit:
    """Derive the container's exit status from srun's messages and exit status.

    The tasks' own wait statuses are exact, and the highest one counts. srun's exit status is not:
    0 for a step that was ended with its job, 130 for a bundle that is missing (seen with 22.05).
    """
    floor = max(srun_status, 1)  # the least status of a failure, whatever srun returned
    if state.launch_failed:
        return Exit(floor, launched=False)
    if state.statuses:
        lack = any(status & 0xFF == _OUT_OF_MEMORY for status in state.statuses)
        codes = [_exit_code(status) for status in state.statuses]
        if state.missing > 0 and (state.aborted or srun_status):
            codes.append(floor)  # some succeeded, and nobody knows how the others ended
        return Exit(max(codes), launched=True, out_of_memory=lack)
    if state.started and not state.aborted:
        return Exit(shell_status(srun_status), launched=True)
    return Exit(floor, launched=state.started)


def ending_of_step(state: StepState, ended: Exit, salloc: JobState | None = None) -> Ending:
    """Return how a container, or a program executed in one, ended.

    salloc does not name the step that ran out of memory, so this blames only one that was killed.
    """
    too_large = salloc is not None and salloc.over_memory and ended.status == _KILLED
    if not (ended.out_of_memory or too_large):
        return exited(ended.status)
    return out_of_memory(state.step_id.partition(".")[0])


def out_of_memory(job_id: str) -> Ending:
    """Return the ending of a container after the kernel, or Slurm, killed one of its processes."""
    return taken(
        "out-of-memory",
        f"job {job_id}: out of memory, a process was killed: request more with "
        "SCRUN_MEM_PER_NODE or the engine's --memory",
    )


def without_files(which: str) -> Ending:
    """Return the ending of a container whose images nobody serves any more, by job and task."""
    return taken("scrun-failure", f"job {which}: its root file system went away")


def _exit_code(status: int) -> int:
    return _KILLED if status & 0xFF == _OUT_OF_MEMORY else exit_code(status)
