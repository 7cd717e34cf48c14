"""What the scheduler says of a job that waits: why, and when it may start. Pure."""

import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

PENDING = "org.scrun.pending"
ESTIMATED_START = "org.scrun.estimated_start"
OF_WAITING = (PENDING, ESTIMATED_START)
FORGOTTEN = "Slurm does not know it any more"
_MINUTE = 60.0

# squeue(1), JOB REASON CODES, and slurm.conf(5): the first that matches counts. Those of limits
# are many (QOSMaxCpuPerUserLimit, AssocGrpMemRunMinutes, …), and made by one pattern.
_EXPLANATIONS = (
    ("Resources$", "the nodes are busy"),
    ("Priority$", "jobs of higher priority are before it"),
    ("Dependency$", "the job that it depends on is not there yet"),
    ("DependencyNeverSatisfied", "what it depends on can no longer happen: delete it"),
    ("BeginTime", "the time it is to begin at has not come"),
    ("Licenses", "a license that it needs is in use"),
    ("JobHeldUser", "it is held: `scontrol release` lets it go"),
    ("JobHeldAdmin", "an administrator holds it: ask for its release"),
    (
        "PartitionTimeLimit",
        "its time limit is above the partition's: lower SCRUN_TIMELIMIT, or take another "
        "SCRUN_PARTITION",
    ),
    (
        "PartitionNodeLimit",
        "the partition does not allow this number of nodes: change SCRUN_JOB_NUM_NODES, or "
        "take another SCRUN_PARTITION",
    ),
    (
        "Partition(Down|Inactive)",
        "the partition is closed until an administrator opens it: take another SCRUN_PARTITION",
    ),
    (
        "PartitionConfig",
        "the partition has no such nodes, or not enough: ask for less, or take another "
        "SCRUN_PARTITION",
    ),
    (
        "ReqNodeNotAvail",
        "a node that it needs is down, drained or reserved: it waits for that one, or for "
        "the end of a maintenance that it would run into",
    ),
    (
        "Nodes required for job are DOWN",
        "it waits until they come back: ask `sinfo -R` why they are away",
    ),
    ("NodeDown", "a node that it needs is down"),
    ("Reservation", "its reservation has not begun"),
    ("BadConstraints", "no node has what it asks for: change SCRUN_CONSTRAINT or the like"),
    ("Configuring", "its nodes are being started"),
    ("Prolog", "its nodes are being prepared"),
    ("(QOS|Assoc).*(PerJob|PerNode)", "it asks for more than it may ever have: ask for less"),
    ("QOSMin|QOS.*NotMet", "it asks for less than its QOS is for: ask for more"),
    ("QOSJobLimit|QOSResourceLimit|QOSTimeLimit|QOSUsageThreshold", "a limit of its QOS"),
    ("QOSGrp", "what the users of its QOS may have together is in use"),
    ("QOSMax.*PerUser|QOSMax.*User", "what its user may have in this QOS is in use"),
    ("QOS.*PerAccount|QOSMax.*PA", "what its account may have in this QOS is in use"),
    ("QOSMax", "a limit of its QOS"),
    ("AssocGrp", "what its account may have is in use"),
    ("Assoc", "a limit of its account"),
    ("MaxCpuPerAccount|Max.*PerAccount", "what its account may have is in use"),
    ("Account|Job's account", "its account may not use the partition: set SCRUN_ACCOUNT"),
    ("QOSNotAllowed|Job's QOS", "its QOS may not be used in the partition: set SCRUN_QOS"),
    ("InvalidAccount", "its account is not there any more: set SCRUN_ACCOUNT"),
    ("InvalidQOS", "its QOS is not there any more: set SCRUN_QOS"),
    ("BurstBuffer", "its burst buffer is not ready"),
    ("SystemFailure|LaunchFailed|JobLaunchFailure", "its launch failed: ask an administrator"),
    (FORGOTTEN, "slurmctld has lost its state: try again"),
)


# it may wait for ever, because of its own size or kind
_TOO_MUCH = "Partition(Config|NodeLimit)|BadConstraints|(QOS|Assoc).*Per(Job|Node)"


class Waiting(msgspec.Struct, frozen=True):
    """What a pending job waits for.

    Attributes:
        reason: In Slurm's word ("Resources"), or its words.
        start: When it may start (seconds since the epoch), or None while nobody knows.
    """

    reason: str
    start: float | None = None


def waiting_line(
    job_id: str, waiting: Waiting, *, now: float | None = None, explained: bool = False
) -> str:
    """Say it in one line: `job 42 pending: Resources, starts about 14:05`.

    Args:
        job_id: The job.
        waiting: What it waits for.
        now: The present moment; a start on another day has its date.
        explained: Whether Slurm's word is explained, with the remedy where there is one.
    """
    words = f"job {job_id} pending: {waiting.reason}"
    if waiting.start is not None:
        words += f", starts about {_moment(waiting.start, time.time() if now is None else now)}"
    explanation = explain(waiting.reason) if explained else ""
    return f"{words} ({explanation})" if explanation else words


def explain(reason: str) -> str:
    """Say in other words why a job waits, and what helps; "" when there are none."""
    return next((words for pattern, words in _EXPLANATIONS if re.match(pattern, reason)), "")


def is_too_much(reason: str) -> bool:
    """Whether a job waits because it asks for more than it can get."""
    return re.match(_TOO_MUCH, reason) is not None


def in_vain_line(job_id: str, waiting: Waiting, because: str = "") -> str:
    """Say that a job waits in vain: `job 42 can never start: PartitionNodeLimit (…)`.

    Args:
        job_id: The job.
        waiting: What it waits for.
        because: What the caller has asked for.
    """
    words = f"job {job_id} can never start: {waiting.reason}"
    if explanation := explain(waiting.reason):
        words += f" ({explanation})"
    return f"{words}: {because}" if because else words


def suspended_line(job_id: str, suspended: bool) -> str:
    """Say that a job was suspended, or that it goes on."""
    if suspended:
        return f"job {job_id} is suspended, and so is the container, until Slurm resumes it"
    return f"job {job_id} is resumed"


def is_hopeless(reason: str, give_up: Iterable[str]) -> bool:
    """Whether no waiting cures what a job waits for.

    Args:
        reason: In Slurm's word, or its words.
        give_up: Such reasons, in which `*` stands for anything.
    """
    patterns = (".*".join(map(re.escape, known.split("*"))) for known in give_up)
    return any(re.fullmatch(pattern, reason, re.DOTALL) for pattern in patterns)


def annotations_of(waiting: Waiting | None) -> dict[str, str]:
    """Return the annotations of `state` that say it; none when it does not wait."""
    if waiting is None:
        return {}
    found = {PENDING: waiting.reason}
    if waiting.start is not None:
        moment = datetime.fromtimestamp(waiting.start, UTC)
        found[ESTIMATED_START] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")  # RFC 3339
    return found


def is_news(told: Waiting | None, waiting: Waiting, now: float) -> bool:
    """Whether it is worth a line, after what was told last.

    The scheduler estimates anew every half minute. A start that has moved by less than a minute,
    or by less than a tenth of the time that is left, is the same.
    """
    if told is None or told.reason != waiting.reason:
        return True
    if told.start is None or waiting.start is None:
        return told.start != waiting.start
    moved = abs(waiting.start - told.start)
    return moved >= _MINUTE and moved >= (waiting.start - now) / 10


def _moment(moment: float, now: float) -> str:
    """Write a moment of local time, with the date when that is not today."""
    there, here = time.localtime(moment), time.localtime(now)
    return time.strftime("%H:%M" if there[:3] == here[:3] else "%Y-%m-%d %H:%M", there)
