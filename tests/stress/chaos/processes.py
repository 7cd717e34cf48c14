"""Faults of processes: signals to one, and the death of several at once. Pure."""

from typing import Any

from tests.stress.chaos.faults import (
    ALL,
    CREATED,
    CREATING,
    DELETING,
    ENDING,
    ENGINES,
    KINDS,
    PODMAN,
    RUNNING,
    STARTING,
    TRAPPED,
    WAITING,
    WATCHED,
    Fault,
    Moment,
)

_TERM, _INT, _KILL = 143, 130, 137
_RUNTIME = 1  # what the OCI runtime ends with itself; it says why on the container's stderr
_RUNC_INIT = 2  # what is to become the program is runc still, and process 1: Go cannot die there
_CANCELLED, _FAILURE = 122, 125


def signals(
    target: str,
    moments: tuple[Moment, ...],
    seen: dict[str, str],
    ends: dict[str, set[int]],
    prefix: str = "",
    **more: object,
) -> list[Fault]:
    """Return the faults of one process: KILL, TERM, INT, and STOP with a CONT later."""
    return [
        Fault(
            name=f"{prefix or target}-{name.lower()}",
            target=target,
            action=name,
            moments=moments,
            seen=text,
            ends=frozenset(ends.get(name, ())),
            surely=f"{target}-{name}" not in _UNSURE and target != "worker",
            refuses=name != "STOP",
            **more,  # type: ignore[arg-type]
        )
        for name, text in seen.items()
    ]


_UNSURE = ("srun-INT", "shim-INT", "shim-TERM", "supervisor-KILL", "supervisor-TERM")
_ANY = {*range(1, 256)}  # what podman ends with when it has lost its conmon: but never 0
_HEARING = tuple(kind for kind in KINDS if kind != "stubborn")
LATER = "nothing, but for the time in which it was stopped"
_SLURM: dict[str, Any] = {"engines": ("slurm",)}
_LOCAL: dict[str, Any] = {"engines": ("local",)}
_CLIENT = (CREATING, STARTING, ENDING, DELETING)

PROCESSES: tuple[Fault, ...] = (
    *signals(
        "anchor",
        ALL,
        {
            "KILL": "the status of a killed process (137 in a shell); the container is ended",
            "TERM": "passed on to the container; what is not over after five seconds is ended",
            "INT": "as TERM",
            "STOP": LATER,
        },
        {"KILL": {-9}, "TERM": {TRAPPED, _TERM}, "INT": {TRAPPED, _INT}},
    ),
    *signals(
        "supervisor",
        ALL,
        {
            "KILL": "nothing, but for the time: another one adopts it, or waits on for its "
            "job. A `create` that it was asked for is refused",
            "TERM": "as KILL",
            "INT": "status 125; `state` says that the supervisor was told to stop",
            "STOP": LATER,
        },
        {"KILL": {_FAILURE}, "TERM": {_FAILURE}, "INT": {_FAILURE}},
        kinds=(*KINDS, *WATCHED),
        own=True,
        weight=2,
    ),
    *signals(
        "keeper",
        ALL,
        {
            "KILL": "nothing: another one takes its place",
            "STOP": LATER,
        },
        {},
        own=True,
        weight=2,
    ),
    *signals(
        "salloc",
        ALL,
        {
            "KILL": "status 125, `salloc ended unexpectedly`; the job is cancelled by its id",
            "TERM": "the job is given up: status 125 or 122",
            "INT": "as TERM",
            "STOP": LATER,
        },
        {"KILL": {_FAILURE}, "TERM": {_FAILURE, _CANCELLED}, "INT": {_FAILURE, _CANCELLED}},
        weight=2,
        **_SLURM,
    ),
    *signals(
        "srun",
        (STARTING, RUNNING, ENDING),
        {
            "KILL": "Slurm ends the step when its srun is gone: status 137",
            "TERM": "Slurm ends the step: status 137",
            "INT": "nothing, when the container runs: srun waits for a second one. Before, 125",
            "STOP": LATER,
        },
        {"KILL": {_KILL, _FAILURE}, "TERM": {_KILL, _FAILURE}, "INT": {_FAILURE}},
        weight=2,
        launches=("container",),
        **_SLURM,
    ),
    *signals(
        "keepalive",
        ALL,
        {
            "KILL": "status 122: the job is cancelled",
            "TERM": "as KILL",
            "INT": "as KILL",
            "STOP": LATER,
        },
        {"KILL": {_CANCELLED}, "TERM": {_CANCELLED}, "INT": {_CANCELLED}},
        weight=2,
        **_LOCAL,
    ),
    *signals(
        "runtime",
        (CREATING, STARTING, RUNNING, ENDING),
        {
            "KILL": "`create` or `start` is refused. Where the container has a reaper: "
            "status 125, `its reaper ended first`",
            "TERM": "as KILL, or runc's 2",
            "INT": "as TERM",
            "STOP": LATER,
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
    *signals(
        "first",
        ALL,
        {"KILL": "status 137", "STOP": LATER},
        {"KILL": {_KILL}},
        weight=2,
        **_LOCAL,
    ),
    *signals(
        "first",
        (STARTING, RUNNING, ENDING, DELETING),
        {"TERM": "what its program makes of it", "INT": "as TERM"},
        {"TERM": {TRAPPED, _RUNC_INIT}, "INT": {TRAPPED, _RUNC_INIT}},
        kinds=_HEARING,
        weight=2,
        **_LOCAL,
    ),
    *(
        Fault(
            f"unstarted-{name.lower()}",
            "first",
            name,
            (CREATED,),
            "nothing: the first process of a PID namespace does not hear it; or runc's 2",
            ends=frozenset({_RUNC_INIT}),
            surely=False,
            engines=("local",),
            weight=1,
        )
        for name in ("TERM", "INT")
    ),
    *signals(
        "client",
        _CLIENT,
        {
            "KILL": "of `create`: the container is ended and its record removed. `start` and "
            "`delete` go on without it",
            "TERM": "as KILL",
            "INT": "as KILL; its exit status is 130",
            "STOP": LATER,
        },
        {"KILL": {_TERM}, "TERM": {_TERM}, "INT": {_TERM}},
    ),
    *signals(
        "worker",
        (CREATING, WAITING, ENDING),
        {
            "KILL": "`create` is refused; in stage_out, 125 instead of 0 to 0; 125 when the job "
            "was waited for",
            "TERM": "as KILL",
            "INT": "as KILL",
            "STOP": LATER,
        },
        {"KILL": {_FAILURE}, "TERM": {_FAILURE}, "INT": {_FAILURE}},
        kinds=("script",),
        weight=1,
    ),
    *signals(
        "command",
        (CREATING, ENDING),
        {
            "KILL": "the script sees the status, and decides",
            "TERM": "as KILL",
            "INT": "as KILL",
            "STOP": LATER,
        },
        {"KILL": {_FAILURE}, "TERM": {_FAILURE}, "INT": {_FAILURE}},
        kinds=("script",),
        weight=1,
    ),
    *signals(
        "exec",
        (RUNNING,),
        {
            "KILL": "the program is ended; its container goes on",
            "TERM": "passed on to the program; its container goes on",
            "INT": "as TERM",
            "STOP": LATER,
        },
        {},
        kinds=("exec",),
        weight=1,
    ),
    *signals(
        "podman",
        (CREATING, RUNNING),
        {
            "TERM": "passed on to the container; a podman that has not called scrun ends with 0",
            "INT": "passed on to the container",
            "STOP": LATER,
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
    *signals(
        "conmon",
        (CREATING, RUNNING),
        {
            "KILL": "podman loses the container's status; `podman rm --force` removes it. One "
            "that has not begun is ended",
            "TERM": "as KILL",
            "STOP": LATER,
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
            action="together",
            moments=ALL,
            seen="as supervisor-kill; the next command gives back what was left",
            # if somebody adopts it: Slurm has ended the step of an srun that is gone
            ends=frozenset({_FAILURE, _CANCELLED, -9} | ({_KILL} if "srun" in beside else set())),
            engines=engines,
            own=True,
            weight=2,
            beside=beside,
            surely=False,
        )
        for beside, engines in (
            (("anchor",), ENGINES),
            (("salloc",), ("slurm",)),
            (("srun",), ("slurm",)),
            (("salloc", "srun", "anchor"), ("slurm",)),
            (("keepalive",), ("local",)),
            (("runtime",), ("local",)),
            (("keepalive", "runtime", "anchor"), ("local",)),
        )
    ),
)
