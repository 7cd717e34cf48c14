"""All faults there are. Pure."""

from tests.chaos.faults import (
    ALL,
    CREATED,
    CREATING,
    DELETING,
    ENDING,
    ENGINES,
    HELD,
    KINDS,
    NONE,
    PODMAN,
    RUNNING,
    STARTING,
    TRAPPED,
    Fault,
    Moment,
)
from tests.chaos.points import POINTS

_TERM, _INT, _KILL = 143, 130, 137
_RUNTIME = 1  # what the OCI runtime ends with itself; it says why on the container's stderr
_RUNC_INIT = 2  # what is to become the program is runc still, and process 1: Go cannot die there
_NODE, _CANCELLED, _LIMIT, _FAILURE = 120, 122, 124, 125


def _signals(
    target: str,
    moments: tuple[Moment, ...],
    seen: dict[str, str],
    ends: dict[str, set[int]],
    **more: object,
) -> list[Fault]:
    """Return the faults of one process: KILL, TERM, INT, and STOP with a CONT later."""
    return [
        Fault(
            name=f"{target}-{name.lower()}",
            target=target,
            deed=name,
            moments=moments,
            seen=text,
            ends=frozenset(ends.get(name, ())),
            surely=f"{target}-{name}" != "srun-INT",
            refuses=name != "STOP",
            **more,  # type: ignore[arg-type]
        )
        for name, text in seen.items()
    ]


_ANY = {*range(1, 256)}  # what podman ends with when it has lost its conmon: but never 0
_HEARING = tuple(kind for kind in KINDS if kind != "stubborn")
_LATER = "nothing, but for the time in which it was stopped"
_SLURM: dict[str, object] = {"engines": ("slurm",)}
_LOCAL: dict[str, object] = {"engines": ("local",)}
_CLIENT = (CREATING, STARTING, ENDING, DELETING)

FAULTS: tuple[Fault, ...] = (
    *_signals(
        "anchor",
        ALL,
        {
            "KILL": "the status of a killed process (137 in a shell); the container is ended",
            "TERM": "passed on to the container; what is not over after five seconds is ended",
            "INT": "as TERM",
            "STOP": _LATER,
        },
        {"KILL": {-9}, "TERM": {TRAPPED, _TERM}, "INT": {TRAPPED, _INT}},
    ),
    *_signals(
        "supervisor",
        ALL,
        {
            "KILL": "status 125; `state` says that the supervisor was lost; `delete` tidies up. "
            "A `create` that it was asked for is refused",
            "TERM": "status 125; `state` says that the supervisor was told to stop",
            "INT": "as TERM",
            "STOP": _LATER,
        },
        {"KILL": {_FAILURE}, "TERM": {_FAILURE}, "INT": {_FAILURE}},
        own=True,
        weight=2,
    ),
    *_signals(
        "salloc",
        (CREATING, CREATED, STARTING, RUNNING, ENDING, DELETING),
        {
            "KILL": "status 125, `salloc ended unexpectedly`; the job is cancelled by its id",
            "TERM": "the job is given up: status 125 or 122",
            "INT": "as TERM",
            "STOP": _LATER,
        },
        {"KILL": {_FAILURE}, "TERM": {_FAILURE, _CANCELLED}, "INT": {_FAILURE, _CANCELLED}},
        weight=2,
        **_SLURM,
    ),
    *_signals(
        "srun",
        (STARTING, RUNNING, ENDING),
        {
            "KILL": "Slurm ends the step when its srun is gone: status 137",
            "TERM": "Slurm ends the step: status 137",
            "INT": "nothing, when the container runs: srun waits for a second one. Before, 125",
            "STOP": _LATER,
        },
        {"KILL": {_KILL, _FAILURE}, "TERM": {_KILL, _FAILURE}, "INT": {_FAILURE}},
        weight=2,
        **_SLURM,
    ),
    *_signals(
        "holder",
        (CREATING, CREATED, STARTING, RUNNING, ENDING, DELETING),
        {
            "KILL": "status 122: the job is cancelled",
            "TERM": "as KILL",
            "INT": "as KILL",
            "STOP": _LATER,
        },
        {"KILL": {_CANCELLED}, "TERM": {_CANCELLED}, "INT": {_CANCELLED}},
        weight=2,
        **_LOCAL,
    ),
    *_signals(
        "runtime",
        (STARTING, RUNNING, ENDING),
        {
            "KILL": "status 125, `its OCI runtime ended before it`; the container is removed",
            "TERM": "passed on to the container, when that runs; before, status 125, or runc's 2",
            "INT": "as TERM; runc, when it has a terminal, ends: status 125",
            "STOP": _LATER,
        },
        {
            "KILL": {_FAILURE},
            "TERM": {TRAPPED, _TERM, _FAILURE, _RUNC_INIT},
            "INT": {TRAPPED, _INT, _FAILURE, _RUNC_INIT},
        },
        kinds=_HEARING,  # else its container just goes on
        weight=2,
        **_LOCAL,
    ),
    *_signals(
        "client",
        _CLIENT,
        {
            "KILL": "of `create`: the container is ended and its record removed. `start` and "
            "`delete` go on without it",
            "TERM": "as KILL",
            "INT": "as KILL; its exit status is 130",
            "STOP": _LATER,
        },
        {"KILL": {_TERM}, "TERM": {_TERM}, "INT": {_TERM}},
    ),
    *_signals(
        "worker",
        (CREATING, ENDING),
        {
            "KILL": "`create` is refused; in stage_out, 125 instead of 0 to 0",
            "TERM": "as KILL",
            "INT": "as KILL",
            "STOP": _LATER,
        },
        {"KILL": {_FAILURE}, "TERM": {_FAILURE}, "INT": {_FAILURE}},
        kinds=("script",),
        weight=1,
    ),
    *_signals(
        "command",
        (CREATING, ENDING),
        {
            "KILL": "the script sees the status, and decides",
            "TERM": "as KILL",
            "INT": "as KILL",
            "STOP": _LATER,
        },
        {"KILL": {_FAILURE}, "TERM": {_FAILURE}, "INT": {_FAILURE}},
        kinds=("script",),
        weight=1,
    ),
    *_signals(
        "exec",
        (RUNNING,),
        {
            "KILL": "the program is ended; its container goes on",
            "TERM": "passed on to the program; its container goes on",
            "INT": "as TERM",
            "STOP": _LATER,
        },
        {},
        kinds=("exec",),
        weight=1,
    ),
    *_signals(
        "podman",
        (CREATING, RUNNING),
        {
            "TERM": "passed on to the container; a podman that has not called scrun ends with 0",
            "INT": "passed on to the container",
            "STOP": _LATER,
        },
        {"TERM": {0, *_ANY, -15}, "INT": {*_ANY, -2}},
        engines=("slurm",),
        kinds=PODMAN,
        weight=1,
        slow=True,
    ),
    Fault(
        "podman-kill",
        "podman",
        "KILL",
        (RUNNING,),
        "the container goes on without it; `podman rm --force` removes it",
        ends=frozenset({-9}),
        engines=("slurm",),
        kinds=PODMAN,
        weight=1,
        slow=True,
    ),
    *_signals(
        "conmon",
        (CREATING, RUNNING),
        {
            "KILL": "podman loses the container's status; `podman rm --force` removes it. One "
            "that has not begun is ended",
            "TERM": "as KILL",
            "STOP": _LATER,
        },
        {"KILL": _ANY, "TERM": _ANY},
        engines=("slurm",),
        kinds=PODMAN,
        weight=1,
        slow=True,
    ),
    *(
        Fault(
            name="+".join((*beside, "supervisor")) + "-kill",
            target="supervisor",
            deed="together",
            moments=ALL,
            seen="as supervisor-kill; the next command gives back what was left",
            ends=frozenset({_FAILURE, -9}),
            engines=engines,
            own=True,
            weight=2,
            beside=beside,
        )
        for beside, engines in (
            (("anchor",), ENGINES),
            (("salloc",), ("slurm",)),
            (("srun",), ("slurm",)),
            (("salloc", "srun", "anchor"), ("slurm",)),
            (("holder",), ("local",)),
            (("runtime",), ("local",)),
            (("holder", "runtime", "anchor"), ("local",)),
        )
    ),
    *(
        Fault(
            name=f"{point}-{deed}",
            target="point",
            deed="point",
            moments=(CREATING,),
            seen=seen,
            ends=frozenset(ends),
            surely=False,
            refuses=deed != "delay",
            own=True,
            weight=1,
            point=point,
        )
        for point in POINTS
        for deed, seen, ends in (
            ("kill", f"as supervisor-kill, {POINTS[point][1]} `{POINTS[point][0]}`", {_FAILURE}),
            ("term", f"as supervisor-term, {POINTS[point][1]} `{POINTS[point][0]}`", {_FAILURE}),
            ("delay", "nothing: it takes longer", set()),
        )
    ),
    *(
        Fault(
            name=f"supervisor-{kind}",
            target="supervisor",
            deed="limited",
            moments=(CREATING, STARTING, RUNNING, ENDING, DELETING),
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
            deed="prepared",
            moments=(CREATING,),
            seen=f"`create` is refused when it lacks a {what}",
            ends=frozenset({_FAILURE}),
            own=own,
            before=("prlimit", f"--{kind}={few}:", "--"),
            weight=1,
        )
        for kind, what, few, own in (
            ("nproc", "process", 1, False),
            ("nofile", "descriptor", 9, False),
        )
    ),
    *(
        Fault(
            name=f"{kind}-full",
            target="supervisor",
            deed="full",
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
            name=f"rogue-{name}",
            target="supervisor",
            deed="rogue",
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
            deed="between",
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
        (CREATING, CREATED, STARTING, RUNNING, ENDING),
        "status 122, `job N was cancelled`",
        ends=frozenset({_CANCELLED}),
        engines=("slurm",),
    ),
    Fault(
        "job-requeue",
        "job",
        "requeue",
        HELD,
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
        HELD,
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
            trouble=True,
            slow=engines == ("slurm",),
        )
        for name, seen, ends, engines in (
            (
                "controller-restart",
                "what needs slurmctld waits for it, or is refused; what runs goes on",
                {_FAILURE},
                ("slurm",),
            ),
            ("controller-kill", "as controller-restart", {_FAILURE}, ("slurm",)),
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
            ("supervisors-kill", "as supervisor-kill, of all containers", {_FAILURE}, ENGINES),
            ("supervisors-term", "as supervisor-term, of all containers", {_FAILURE}, ENGINES),
        )
    ),
)


def find(names: str) -> list[Fault]:
    """Return the faults of a list like `anchor-kill,supervisor`; a target stands for all of its.

    `all` are all of them, `quick` those that do not take long.

    Raises:
        KeyError: There is none of that name.
    """
    if names in ("all", "quick"):
        return [fault for fault in FAULTS if names == "all" or not fault.slow]
    found: list[Fault] = []
    for name in names.split(","):
        some = [fault for fault in FAULTS if name in (fault.name, fault.target)]
        if name == "none":
            some = [NONE]
        if not some:
            raise KeyError(name)
        found += some
    return found
