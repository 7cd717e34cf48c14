"""Why a job is pending and when it may start, in Slurm's words and in plainer ones. Pure."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from scrun.core.times import clock

PENDING = "org.scrun.pending"
ESTIMATED_START = "org.scrun.estimated_start"
OF_WAITING = (PENDING, ESTIMATED_START)
FORGOTTEN = "Slurm does not know it any more"
RATE_LIMITED = "RateLimited"
"""Ours: slurmctld limits the requests of the user (slurm.conf(5), rl_enable)."""
_MINUTE = 60.0

# squeue(1), JOB REASON CODES, and slurm.conf(5): the first that matches counts. The many reasons
# about limits (QOSMaxCpuPerUserLimit, AssocGrpMemRunMinutes, …) are built by one pattern.
_EXPLANATIONS = (
    ("PoolResources", "the nodes of its pool have no room for it yet"),
    ("PoolPending", "the jobs of its pool are pending"),
    ("Resources$", "the nodes are busy"),
    ("Priority$", "jobs of higher priority go first"),
    ("Dependency$", "it depends on another job, which is not done"),
    ("DependencyNeverSatisfied", "its dependency can never be met: delete it"),
    ("BeginTime", "its begin time has not come"),
    ("Licenses", "a license that it needs is in use"),
    ("JobHeldUser", "it is held: release it with `scontrol release`"),
    ("JobHeldAdmin", "an administrator holds it: ask for its release"),
    (
        "PartitionTimeLimit",
        "its time limit is above the partition's: lower SCRUN_TIMELIMIT, or choose another "
        "SCRUN_PARTITION",
    ),
    (
        "PartitionNodeLimit",
        "the partition does not allow this number of nodes: change SCRUN_JOB_NUM_NODES, or "
        "choose another SCRUN_PARTITION",
    ),
    (
        "Partition(Down|Inactive)",
        "the partition is closed until an administrator opens it: choose another SCRUN_PARTITION",
    ),
    (
        "PartitionConfig",
        "the partition has no such nodes, or too few: ask for less, or choose another "
        "SCRUN_PARTITION",
    ),
    (
        "ReqNodeNotAvail",
        "a node that it needs is down, drained or reserved: it waits for that node, or for "
        "the end of a maintenance that it would run into",
    ),
    (
        "Nodes required for job are DOWN",
        "it waits until they are back: `sinfo -R` says why they are down",
    ),
    ("NodeDown", "a node that it needs is down"),
    ("Reservation", "its reservation has not begun"),
    ("BadConstraints", "no node has what it asks for: change SCRUN_CONSTRAINT or the like"),
    ("Configuring", "its nodes are being started"),
    ("Prolog", "its nodes are being prepared"),
    ("(QOS|Assoc).*(PerJob|PerNode)", "it asks for more than its limit allows: ask for less"),
    ("QOSMin|QOS.*NotMet", "it asks for less than the minimum of its QOS: ask for more"),
    ("QOSJobLimit|QOSResourceLimit|QOSTimeLimit|QOSUsageThreshold", "its QOS is at a limit"),
    ("QOSGrp", "the users of its QOS are at their common limit"),
    ("QOSMax.*PerUser|QOSMax.*User", "its user is at the limit of this QOS"),
    ("QOS.*PerAccount|QOSMax.*PA", "its account is at the limit of this QOS"),
    ("QOSMax", "its QOS is at a limit"),
    ("AssocGrp", "its account is at its limit"),
    ("Assoc", "its account is at its limit"),
    ("MaxCpuPerAccount|Max.*PerAccount", "its account is at its limit"),
    ("Account|Job's account", "its account may not use the partition: set SCRUN_ACCOUNT"),
    ("QOSNotAllowed|Job's QOS", "its QOS may not be used in the partition: set SCRUN_QOS"),
    ("InvalidAccount", "its account does not exist any more: set SCRUN_ACCOUNT"),
    ("InvalidQOS", "its QOS does not exist any more: set SCRUN_QOS"),
    ("BurstBuffer", "its burst buffer is not ready"),
    ("SystemFailure|LaunchFailed|JobLaunchFailure", "its launch failed: ask an administrator"),
    (
        RATE_LIMITED,
        "slurmctld limits how often its user may ask: start fewer at once, or several in one job",
    ),
    (FORGOTTEN, "slurmctld has lost its state: try again"),
)


# reasons of the job's own size or kind, for which it may wait for ever
_TOO_MUCH = "Partition(Config|NodeLimit)|BadConstraints|(QOS|Assoc).*Per(Job|Node)"


class Waiting(msgspec.Struct, frozen=True):
    """What a pending job waits for: Slurm's reason, and when it may start, in seconds or None."""

    reason: str
    start: float | None = None


def waiting_line(
    job_id: str, waiting: Waiting, *, now: float | None = None, explained: bool = False
) -> str:
    """Describe a pending job in one line: `job 42 pending: Resources, starts about 14:05`.

    A `job_id` of "" stands for a job that slurmctld has not taken yet. A start on another day than
    `now` has its date. `explained` adds an explanation and remedy, if there is one.
    """
    words = f"{f'job {job_id} ' if job_id else ''}pending: {waiting.reason}"
    if waiting.start is not None:
        words += f", starts about {clock(waiting.start, now)}"
    explanation = explain(waiting.reason) if explained else ""
    return f"{words} ({explanation})" if explanation else words


def explain(reason: str) -> str:
    """Explain Slurm's reason, with a remedy if there is one; "" for a reason it does not know."""
    return next((words for pattern, words in _EXPLANATIONS if re.match(pattern, reason)), "")


def is_too_much(reason: str) -> bool:
    """Tell whether a job waits because it asks for more than it can get."""
    return re.match(_TOO_MUCH, reason) is not None


def in_vain_line(job_id: str, waiting: Waiting, because: str = "") -> str:
    """Say that a job can never start, `because` of what the caller has requested."""
    words = f"job {job_id} can never start: {waiting.reason}"
    if explanation := explain(waiting.reason):
        words += f" ({explanation})"
    return f"{words}: {because}" if because else words


def suspended_line(job_id: str, suspended: bool) -> str:
    if suspended:
        return f"job {job_id} is suspended, and so is the container, until Slurm resumes it"
    return f"job {job_id} is resumed"


def is_hopeless(reason: str, give_up: Iterable[str]) -> bool:
    """Tell whether a reason does not go away; `*` in `give_up` stands for anything."""
    patterns = (".*".join(map(re.escape, known.split("*"))) for known in give_up)
    return any(re.fullmatch(pattern, reason, re.DOTALL) for pattern in patterns)


def annotations_of(waiting: Waiting | None) -> dict[str, str]:
    """Return the annotations of `state` about a pending job; empty when it is not pending."""
    if waiting is None:
        return {}
    found = {PENDING: waiting.reason}
    if waiting.start is not None:
        moment = datetime.fromtimestamp(waiting.start, UTC)
        found[ESTIMATED_START] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")  # RFC 3339
    return found


def waiting_of(annotations: Mapping[str, str]) -> Waiting | None:
    """Return what a job waited for when `annotations_of` was written."""
    if (reason := annotations.get(PENDING)) is None:
        return None
    start = annotations.get(ESTIMATED_START)
    return Waiting(reason, None if start is None else datetime.fromisoformat(start).timestamp())


def is_news(shown: Waiting | None, waiting: Waiting, now: float) -> bool:
    """Tell whether a change is worth a line, compared with the last line shown.

    The scheduler estimates anew every half minute. A start that has moved by less than a minute,
    or by less than a tenth of the time that is left, counts as unchanged.
    """
    if shown is None or shown.reason != waiting.reason:
        return True
    if shown.start is None or waiting.start is None:
        return shown.start != waiting.start
    moved = abs(waiting.start - shown.start)
    return moved >= _MINUTE and moved >= (waiting.start - now) / 10
