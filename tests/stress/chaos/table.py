"""All faults there are. Pure."""

from collections.abc import Sequence

import msgspec

from tests.stress.chaos.faults import (
    ALL,
    CREATED,
    CREATING,
    DELETING,
    ENDING,
    ENGINES,
    HELD,
    KINDS,
    LAUNCHES,
    NONE,
    OF_IMAGES,
    RUNNING,
    STARTING,
    TRAPPED,
    WAITING,
    WATCHED,
    Fault,
    Moment,
)
from tests.stress.chaos.points import OF_SHIMS, OF_VOLUMES, POINTS
from tests.stress.chaos.processes import PROCESSES
from tests.stress.chaos.shims import SHIMS

_RUNTIME = 1  # what the OCI runtime ends with itself; it says why on the container's stderr
_NODE, _CANCELLED, _LIMIT, _FAILURE = 120, 122, 124, 125

FAULTS: tuple[Fault, ...] = (
    *PROCESSES,
    *SHIMS,
    *(
        Fault(
            name=f"{point}-{action}",
            target="point",
            action="point",
            moments=(CREATING,),
            seen=seen,
            ends=frozenset(ends),
            surely=False,
            refuses=action != "delay",
            own=True,
            weight=1,
            point=point,
            engines=("slurm",) if point in (*OF_SHIMS, *OF_VOLUMES) else ENGINES,
            kinds=OF_IMAGES if point in OF_VOLUMES else KINDS,
            launches=("shim",) if point in OF_SHIMS else LAUNCHES,
        )
        for point in POINTS
        for action, seen, ends in (
            ("kill", f"as supervisor-kill, {POINTS[point][1]} `{POINTS[point][0]}`", {_FAILURE}),
            ("term", f"as supervisor-term, {POINTS[point][1]} `{POINTS[point][0]}`", {_FAILURE}),
            ("delay", "nothing: it takes longer", set()),
        )
    ),
    *(
        Fault(
            name=f"supervisor-{kind}",
            target="supervisor",
            action="limited",
            moments=(CREATING, STARTING, WAITING, RUNNING, ENDING, DELETING),
            seen=f"what needs one more {what} is refused, or ends with 125; all else goes on",
            ends=frozenset({_FAILURE}),
            surely=False,
            own=True,
            weight=3,
        )
        for kind, what in (("nproc", "process"), ("nofile", "descriptor"))
    ),
    *(
        Fault(
            name=f"create-{kind}",
            target="client",
            action="prepared",
            moments=(CREATING,),
            seen=f"`create` is refused when it lacks a {what}",
            ends=frozenset({_FAILURE}),
            own=own,
            before=("prlimit", f"--{kind}={few}:", "--"),
            weight=1,
        )
        for kind, what, few, own in (
            ("nproc", "process", 1, False),
            ("nofile", "descriptor", 12, False),
        )
    ),
    *(
        Fault(
            name=f"{kind}-full",
            target="supervisor",
            action="full",
            moments=ALL,
            seen=seen,
            ends=frozenset({_FAILURE, _RUNTIME}),
            surely=False,
            own=True,
            disk=kind,
            weight=2,
        )
        for kind, seen in (
            ("root", "`create` is refused; a container that is there goes on, its record is old"),
            ("scratch", "`create` is refused; a container that is there goes on"),
        )
    ),
    *(
        Fault(
            name=f"{kind}-frozen",
            target="supervisor",
            action="freeze",
            moments=ALL,
            seen="nothing, but for the time in which it did not answer",
            refuses=False,
            own=True,
            disk=kind,
            weight=2,
        )
        for kind in ("root", "scratch")
    ),
    *(
        Fault(
            name=name,
            target=target,
            action=action,
            moments=moments,
            seen=seen,
            ends=frozenset(ends),
            surely=False,
            refuses=bool(ends),
            engines=("slurm",),
            kinds=kinds,
            own=True,
            disk="store",
            weight=2,
        )
        for name, target, action, moments, kinds, seen, ends in (
            (
                "store-full",
                "store",
                "full",
                (CREATING, RUNNING, DELETING),
                OF_IMAGES,
                "nothing: its image is mounted, or copied for it alone",
                (),
            ),
            (
                "store-gone",
                "store",
                "gone",
                (CREATING, CREATED, RUNNING, DELETING),
                ("status",),
                "nothing, or it does not start: the runtime says why",
                (_RUNTIME, _FAILURE, 126, 127),
            ),
            (
                "convert-kill",
                "converter",
                "KILL",
                (CREATING,),
                OF_IMAGES,
                "nothing: its image is copied for it alone",
                (),
            ),
        )
    ),
    *(
        Fault(
            name=f"bad-client-{name}",
            target="supervisor",
            action="bad-client",
            moments=(CREATING, *HELD, ENDING),
            seen="nothing",
            refuses=False,
            weight=1,
        )
        for name in ("garbage", "half", "slow", "twice", "gone", "many", "stranger")
    ),
    *(
        Fault(
            name=f"answer-{name}",
            target="supervisor",
            action="between",
            moments=HELD,
            seen=seen,
            refuses=name == "stranger",
            kinds=tuple(kind for kind in KINDS if kind != "exec"),  # that passes descriptors
            weight=1,
        )
        for name, seen in (
            ("slow", "nothing: it takes longer"),
            ("dropped", "nothing: the command asks again"),
            ("stranger", "what is asked for meanwhile is refused: another user answers"),
        )
    ),
    Fault(
        "job-cancel",
        "job",
        "cancel",
        (CREATING, CREATED, STARTING, WAITING, RUNNING, ENDING),
        "status 122, `job N was cancelled`",
        ends=frozenset({_CANCELLED}),
        engines=("slurm",),
    ),
    Fault(
        "job-requeue",
        "job",
        "requeue",
        (CREATED, RUNNING),
        "nothing: Slurm requeues batch jobs only",
        ends=frozenset({_CANCELLED}),
        surely=False,
        engines=("slurm",),
        weight=1,
    ),
    Fault(
        "job-limit",
        "job",
        "limit",
        (CREATED, RUNNING),
        "status 124, when slurmctld looks (every 30 s) or refuses a step",
        ends=frozenset({_LIMIT, TRAPPED}),
        engines=("slurm",),
        weight=1,
        slow=True,
    ),
    *(
        Fault(
            name,
            "cluster",
            name,
            ALL,
            seen,
            ends=frozenset(ends),
            surely=False,
            engines=engines,
            kinds=(*KINDS, *WATCHED) if name.startswith("supervisors") else KINDS,
            outage=True,
            slow=engines == ("slurm",),
        )
        for name, seen, ends, engines in (
            (
                "controller-restart",
                "what needs slurmctld waits for it, or is refused; what runs goes on",
                {_FAILURE},
                ("slurm",),
            ),
            (
                "controller-kill",
                "as controller-restart; a job of the last seconds may be forgotten: 122, or 125",
                {_FAILURE, _CANCELLED},
                ("slurm",),
            ),
            ("controller-stop", "as controller-restart", {_FAILURE}, ("slurm",)),
            (
                "slurmd-kill",
                "what runs goes on; what is started meanwhile ends with 125",
                {_FAILURE},
                ("slurm",),
            ),
            ("slurmd-stop", "as slurmd-kill, or it waits", {_FAILURE}, ("slurm",)),
            (
                "munged-restart",
                "what needs Slurm is refused, or ends with 125; what runs goes on",
                {_FAILURE},
                ("slurm",),
            ),
            ("munged-stop", "what needs Slurm waits", {_FAILURE}, ("slurm",)),
            ("node-down", "status 120, `node N failed`", {_NODE, _FAILURE}, ("slurm",)),
            ("names-hang", "what looks for a user's name takes longer", set(), ENGINES),
            ("supervisors-kill", "as supervisor-kill, of all containers", {_FAILURE}, ENGINES),
            ("supervisors-term", "as supervisor-term, of all containers", {_FAILURE}, ENGINES),
        )
    ),
)


def find(
    names: str,
    moment: Moment | None = None,
    launches: tuple[str, ...] = LAUNCHES,
    more: Sequence[Fault] = (),
) -> list[Fault]:
    """Return the faults of a list like `anchor-kill,supervisor`; a target stands for all of its.

    `all` are all of them, `quick` those that do not take long. With a moment they are those that
    come then, and come at no other one; with launches, those that come with any of these. `more`
    are those of what not every run has.

    Raises:
        KeyError: There is none of that name.
    """
    if moment is not None:
        return [
            msgspec.structs.replace(fault, moments=(moment,))
            for fault in find(names, launches=launches, more=more)
            if moment in fault.moments
        ]
    possible = [fault for fault in (*FAULTS, *more) if {*launches} & {*fault.launches}]
    if names in ("all", "quick"):
        return [fault for fault in possible if names == "all" or not fault.slow]
    found: list[Fault] = []
    for name in names.split(","):
        some = [fault for fault in possible if name in (fault.name, fault.target)]
        if name == "none":
            some = [NONE]
        if not some:
            raise KeyError(name)
        found += some
    return found
