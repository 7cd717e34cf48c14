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
    PENDING = enum.auto()
    GRANTED = enum.auto()
    REFUSED = enum.auto()
    REVOKED = enum.auto()
    TIME_LIMIT = enum.auto()
    CANCELLED = enum.auto()
    RELINQUISHED = enum.auto()
    NOT_RELINQUISHED = enum.auto()
    OVER_MEMORY = enum.auto()
    SUSPENDED = enum.auto()
    RESUMED = enum.auto()
    # salloc and srun
    NODE_FAILURE = enum.auto()
    RATE_LIMITED = enum.auto()
    # srun, about its step
    NO_STEP = enum.auto()
    LAUNCHING = enum.auto()
    LAUNCH_FAILED = enum.auto()
    STARTED = enum.auto()
    TASK_EXIT = enum.auto()
    TASK_ENDED = enum.auto()
    ABORTED = enum.auto()
    # scancel and squeue
    GONE = enum.auto()
    NO_ERROR = enum.auto()


class ToolMessage(msgspec.Struct, frozen=True):
    """A recognized message.

    Attributes:
        sentence: Its kind.
        words: Its variable parts, by name.
    """

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

_INFO, _ERROR = "", "error: "
_SENTENCES: tuple[tuple[Tool, str, Sentence, str], ...] = (
    ("salloc", _INFO, Sentence.PENDING, f"Pending job allocation {_JOB}"),
    ("salloc", _INFO, Sentence.PENDING, f"job {_JOB} queued and waiting for resources"),
    ("salloc", _INFO, Sentence.GRANTED, f"job {_JOB} has been allocated resources"),
    ("salloc", _INFO, Sentence.GRANTED, f"Granted job allocation {_JOB}"),
    ("salloc", _ERROR, Sentence.REFUSED, "Job submit/allocate failed: (?P<reason>.+)"),
    ("salloc", _INFO, Sentence.REVOKED, rf"Job allocation {_JOB} has been revoked\.?"),
    (
        "salloc",
        _INFO,
        Sentence.TIME_LIMIT,
        rf"Job {_JOB} has exceeded its time limit and its allocation has been revoked\.",
    ),
    ("salloc", _INFO, Sentence.CANCELLED, "Job has been cancelled"),
    ("salloc", _INFO, Sentence.RELINQUISHED, f"Relinquishing job allocation {_JOB}"),
    (
        "salloc",
        _ERROR,
        Sentence.NOT_RELINQUISHED,
        r"Unable to clean up (?:job allocation|allocation for(?: job)?) "
        rf"(?:JobId=)?{_JOB}(?: SLUID=\S+)?: .*",
    ),
    ("salloc", _INFO, Sentence.OVER_MEMORY, "Exceeded job memory limit"),
    # with -v
    ("salloc", _INFO, Sentence.SUSPENDED, "job has been suspended"),
    ("salloc", _INFO, Sentence.RESUMED, "job has been resumed"),
    ("salloc", _INFO, Sentence.RATE_LIMITED, _LIMITED),
    ("salloc", _ERROR, Sentence.NODE_FAILURE, r"Node failure on (?P<node>\S+)"),
    ("srun", _INFO, Sentence.RATE_LIMITED, _LIMITED),
    (
        "srun",
        _INFO,
        Sentence.LAUNCHING,
        rf"launching {_STEP} on host (?P<node>\S+), \d+ {_TASKS}",
    ),
    ("srun", _INFO, Sentence.STARTED, rf"{_LAUNCH}Node \S+, {_COUNT} started"),
    (
        "srun",
        _INFO,
        Sentence.TASK_EXIT,
        rf"{_LAUNCH}Received task exit notification for {_COUNT} of {_STEP} "
        r"\(status=0x(?P<status>[0-9a-fA-F]{1,16})\)\.",
    ),
    ("srun", _INFO, Sentence.TASK_ENDED, rf"{_LAUNCH}\S+: {_TASKS}: Completed"),
    ("srun", _ERROR, Sentence.TASK_ENDED, rf"{_LAUNCH}\S+: {_TASKS}: .+"),
    (
        "srun",
        _ERROR,
        Sentence.LAUNCH_FAILED,
        rf"Task launch for {_STEP} failed on node (?P<node>\S+): .*",
    ),
    # srun treats such a task as one that ran, and returns 0
    ("srun", _ERROR, Sentence.LAUNCH_FAILED, r"task \d{1,10} launch failed: .*"),
    (
        "srun",
        _INFO,
        Sentence.ABORTED,
        r"Job step aborted(?:: Waiting up to \d+ seconds for job step to finish\.)?",
    ),
    ("srun", _INFO, Sentence.ABORTED, "forcing job termination"),
    ("srun", _INFO, Sentence.ABORTED, f"Force Terminated {_STEP}"),
    ("srun", _ERROR, Sentence.NODE_FAILURE, r"Node failure on (?P<node>\S+)"),
    ("srun", _ERROR, Sentence.ABORTED, "Timed out waiting for job step to complete"),
    # the job ended before the step began
    ("srun", _ERROR, Sentence.ABORTED, f"Slurm job {_JOB} has expired"),
    (
        "srun",
        _ERROR,
        Sentence.ABORTED,
        f"Unable to confirm allocation for job {_JOB}: (?:{_OVER})",
    ),
    ("srun", _ERROR, Sentence.NO_STEP, f"Unable to create step for job {_JOB}: (?P<reason>.*)"),
    (
        "scancel",
        _ERROR,
        Sentence.GONE,
        rf"Kill job error on job (?:step )?id (?P<id>\S+): (?:{_OVER})",
    ),
    # 22.05, for a step that received the signal
    (
        "scancel",
        _ERROR,
        Sentence.NO_ERROR,
        r"Kill job error on job (?:step )?id (?P<id>\S+): No error",
    ),
)
_TABLE: dict[Tool, list[tuple[Sentence, re.Pattern[str]]]] = {}
for _tool, _level, _sentence, _pattern in _SENTENCES:
    _TABLE.setdefault(_tool, []).append(
        (_sentence, re.compile(f"{_tool}: {_level}(?:{_pattern})", re.ASCII))
    )
# squeue prints it without its name
_TABLE["squeue"] = [(Sentence.GONE, re.compile(f"slurm_load_jobs error: {re.escape(OVER[1])}"))]
# the node prints it through srun, when the step is ended from outside
_TABLE["srun"].append(
    (
        Sentence.ABORTED,
        re.compile(r"slurmstepd-\S+: error: \*\*\* \S+ \S+ ON \S+ CANCELLED AT .* \*\*\*"),
    )
)


def parse_line(tool: Tool, line: str) -> ToolMessage | None:
    """Parse one line of a tool's standard error.

    Returns:
        The message; None if it is not one of Slurm's, or not a useful one.
    """
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
