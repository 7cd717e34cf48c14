r"""Recognizes the messages of Slurm's tools, and nothing else. Pure.

Slurm's tools have no machine-readable messages, and plugins speak through them: what a job_submit
or cli_filter plugin tells the user (`slurm.log_user`), and what SPANK plugins log, comes out of
salloc and srun with the tool's own prefix. So a line counts only if all of it is one of Slurm's
messages, from the tool and at the level that Slurm uses for it. All other lines are ignored.

The messages come from the tools of 22.05.8, 24.11.5 and 26.05.5 (`strings`); most were observed.
They are the same in all of them, with two exceptions: 22.05 puts the name of its launch plugin and
of a function before some of srun's (`launch/slurm: _task_start: Node node1, 1 tasks started`), and
26.05 writes `JobId=7 SLUID=sABC` when it fails to relinquish a job.
"""

import enum
import re
from typing import Literal

import msgspec

Tool = Literal["salloc", "srun", "scancel", "squeue"]


class Sentence(enum.Enum):
    """The kinds of messages, by their meaning."""

    # salloc, about its job
    PENDING, GRANTED, REFUSED, REVOKED, TIME_LIMIT, CANCELLED = range(6)
    RELINQUISHED, NOT_RELINQUISHED, OVER_MEMORY, SUSPENDED, RESUMED = range(6, 11)
    # salloc and srun
    NODE_FAILURE, RATE_LIMITED = range(11, 13)
    # srun, about its step
    NO_STEP, LAUNCHING, LAUNCH_FAILED, STARTED, TASK_EXIT, TASK_ENDED, ABORTED = range(13, 20)
    # scancel and squeue
    GONE, NO_ERROR = range(20, 22)


class ToolMessage(msgspec.Struct, frozen=True):
    """A recognized message: its kind, and its variable parts, by name."""

    sentence: Sentence
    words: dict[str, str]


OVER = ("Job/step already completing or completed", "Invalid job id specified")
"""Slurm's messages about a job that has ended."""

_JOB = r"(?P<job>\d{1,10})"
_STEP = r"StepId=(?P<step>\d{1,10}\.\d{1,10})(?:\+\d{1,10})?"
_TASKS = r"tasks?:? (?P<tasks>[\d,[\]-]+)"
_COUNT = r"(?P<count>\d{1,9}) tasks?"
_LAUNCH = r"(?:launch/slurm: \w+: )?"  # 22.05
_OVER = "|".join(map(re.escape, OVER))
_LIMITED = r"RPC rate limited \d{1,9} time\(s\)\. Sleeping then trying again\."  # 23.02, with -v

_LOST = r"Unable to clean up (?:job allocation|allocation for(?: job)?)"
_ENDING = r"(?:: Waiting up to \d+ seconds for job step to finish\.)?"
_EXIT = rf"{_LAUNCH}Received task exit notification for {_COUNT} of {_STEP}"
_KILL = r"error: Kill job error on job (?:step )?id (?P<id>\S+):"

# A sentence, and the whole line after the tool's name
_SENTENCES: dict[Tool, str] = {
    # the last four with -v
    "salloc": rf"""
PENDING Pending job allocation {_JOB}
PENDING job {_JOB} queued and waiting for resources
GRANTED job {_JOB} has been allocated resources
GRANTED Granted job allocation {_JOB}
REFUSED error: Job submit/allocate failed: (?P<reason>.+)
REVOKED Job allocation {_JOB} has been revoked\.?
TIME_LIMIT Job {_JOB} has exceeded its time limit and its allocation has been revoked\.
CANCELLED Job has been cancelled
RELINQUISHED Relinquishing job allocation {_JOB}
NOT_RELINQUISHED error: {_LOST} (?:JobId=)?{_JOB}(?: SLUID=\S+)?: .*
OVER_MEMORY Exceeded job memory limit
SUSPENDED job has been suspended
RESUMED job has been resumed
RATE_LIMITED {_LIMITED}
NODE_FAILURE error: Node failure on (?P<node>\S+)
""",
    # a task whose launch failed srun treats as one that ran, and returns 0; "expired" and "Unable
    # to confirm": the job ended before the step began
    "srun": rf"""
RATE_LIMITED {_LIMITED}
LAUNCHING launching {_STEP} on host (?P<node>\S+), \d+ {_TASKS}
STARTED {_LAUNCH}Node \S+, {_COUNT} started
TASK_EXIT {_EXIT} \(status=0x(?P<status>[0-9a-fA-F]{{1,16}})\)\.
TASK_ENDED {_LAUNCH}\S+: {_TASKS}: Completed
TASK_ENDED error: {_LAUNCH}\S+: {_TASKS}: .+
LAUNCH_FAILED error: Task launch for {_STEP} failed on node (?P<node>\S+): .*
LAUNCH_FAILED error: task \d{{1,10}} launch failed: .*
ABORTED Job step aborted{_ENDING}
ABORTED forcing job termination
ABORTED Force Terminated {_STEP}
NODE_FAILURE error: Node failure on (?P<node>\S+)
ABORTED error: Timed out waiting for job step to complete
ABORTED error: Slurm job {_JOB} has expired
ABORTED error: Unable to confirm allocation for job {_JOB}: (?:{_OVER})
NO_STEP error: Unable to create step for job {_JOB}: (?P<reason>.*)
""",
    # without an error: 22.05, for a step that received the signal
    "scancel": rf"""
GONE {_KILL} (?:{_OVER})
NO_ERROR {_KILL} No error
""",
}
_TABLE: dict[Tool, list[tuple[Sentence, re.Pattern[str]]]] = {
    tool: [
        (Sentence[name], re.compile(f"{tool}: {pattern}", re.ASCII))
        for name, _, pattern in (line.partition(" ") for line in text.strip().splitlines())
    ]
    for tool, text in _SENTENCES.items()
}
# squeue prints it without its name
_TABLE["squeue"] = [(Sentence.GONE, re.compile(f"slurm_load_jobs error: {re.escape(OVER[1])}"))]
# the node prints it through srun, when the step is ended from outside
_CANCELLED = r"slurmstepd-\S+: error: \*\*\* \S+ \S+ ON \S+ CANCELLED AT .* \*\*\*"
_TABLE["srun"].append((Sentence.ABORTED, re.compile(_CANCELLED)))


def parse_line(tool: Tool, line: str) -> ToolMessage | None:
    """Parse a line of a tool's standard error; None: not Slurm's, or not a useful message."""
    for sentence, pattern in _TABLE[tool]:
        if found := pattern.fullmatch(line):
            words = {name: text for name, text in found.groupdict().items() if text is not None}
            return ToolMessage(sentence, words)
    return None


def is_slowed(parsed: ToolMessage | None) -> bool:
    """Return whether a tool says that it waits because slurmctld limits its user's requests."""
    return parsed is not None and parsed.sentence is Sentence.RATE_LIMITED


_CHATTER = re.compile(
    r"salloc: (?:-{20} -{20}|(?:end of )?defined options|(?=.{20}: )\S+ *: .*"
    r"|\w+/\w+: .*|JobId=\d+ returned by the controller)",
    re.ASCII,
)


def is_chatter(line: str) -> bool:
    """Return whether salloc prints a line only because of -v, and it does not concern the job."""
    return _CHATTER.fullmatch(line) is not None


def complaint(tool: Tool, line: str) -> str:
    """Return the text of an error line of a tool, Slurm's own or a plugin's; "" for others.

    A line at the level "fatal" is the last one of a tool.
    """
    for level in ("error: ", "fatal: "):
        if line.startswith(before := f"{tool}: {level}"):
            return line.removeprefix(before)
    return ""
