"""Jobs in which containers are created, and the faults of these. Pure."""

from collections.abc import Sequence

from tests.stress.chaos.faults import (
    ALL,
    CREATED,
    PODMAN,
    RUNNING,
    TRAPPED,
    WAITING,
    Fault,
    not_at,
)

INSIDE = ("script", "array", "step")
"""Where commands are called: in a batch script, an element of an array, a task of a step."""

_ALWAYS = tuple(moment for moment in ALL if moment is not WAITING)
_ENDED = frozenset({TRAPPED, 120, 122, 124, 125, 130, 137, 143, -2, -9, -15})

PLACES: tuple[Fault, ...] = (
    *(
        Fault(
            name=f"place-{action}",
            target="place",
            action=f"place-{action}",
            moments=moments,
            seen=seen,
            ends=ends,
            weight=weight,
            slow=slow,
        )
        for action, moments, seen, ends, weight, slow in (
            (
                "cancel",
                _ALWAYS,
                "the container and all commands in the job end; `delete` removes it from anywhere",
                _ENDED,
                6,
                False,
            ),
            (
                "end",
                _ALWAYS,
                "as place-cancel: the script, or the task, has ended",
                _ENDED,
                4,
                False,
            ),
            ("kill", _ALWAYS, "as place-end", _ENDED, 2, False),
            ("requeue", _ALWAYS, "as place-cancel; the script runs again", _ENDED, 2, False),
            ("limit", (CREATED, RUNNING), "as place-cancel", _ENDED, 1, True),
            (
                "suspend",
                _ALWAYS,
                "nothing, but for the time in which the job was suspended",
                frozenset[int](),
                2,
                False,
            ),
        )
    ),
)
"""What happens to the job."""

_ONE_OF_ITS_JOB = ("place", "shim", "stream", "srun", "image", "runtime")
"""Targets that are found by the job alone, or take all of it with them."""


def in_jobs(faults: Sequence[Fault]) -> list[Fault]:
    """Return those of containers in a job: nobody allocates another one, or waits for it."""
    possible = [
        fault
        for fault in faults
        if not {"salloc", "job"} & {fault.target, *fault.beside}
        and not {*fault.kinds} & {*PODMAN}
        and fault.disk != "store"  # nodes do not see its image, so nobody there does
        and fault.name != "node-down"
    ]
    return not_at((WAITING,), possible)


def is_alone(fault: Fault) -> bool:
    """Tell whether the container of a fault has its job for itself."""
    return bool({*_ONE_OF_ITS_JOB} & {fault.target, *fault.beside})
