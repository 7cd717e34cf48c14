"""The container's state machine, and the ways it can end. Pure.

A container only moves forward, and may stop from any phase::

    creating ──> created ──> waiting ──> starting ──> running
        │           │ └─────────│──────────┘ │            │
        └───────────┴───────────┴─────┬──────┴────────────┘
                                      v
                                  stopping ──> stopped

The runtime specification knows four states. scrun adds `waiting` (`start` was called, but the job
is still in the queue or the bundle is not staged), `starting` (the step is being launched) and
`stopping` (the container has ended or must end, and its changes are being staged out); callers see
these three as `running`.

What causes a transition: a container is *created* when it has its job and its staged bundle, or
when its `create` has waited long enough for them (`create_timeout`). Only `start` makes it
*waiting*, or *starting* if there is nothing to wait for. It is *running* when the engine reports
that the task runs. Anything may make it *stopping*. Only the container's own task makes it
*stopped*: when its process has ended and its changes are staged out, and before its job is
released.
"""

import enum

import msgspec

from scrun.core.errors import NOT_RUNNING, shortened


class Phase(enum.Enum):
    """The phase of a container's life."""

    CREATING = "creating"
    CREATED = "created"
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"

    @property
    def status(self) -> str:
        """The runtime specification's status of this phase (runtime.md, State)."""
        return "running" if self in _SHOWN_AS_RUNNING else self.value


_SHOWN_AS_RUNNING = (Phase.WAITING, Phase.STARTING, Phase.STOPPING)

_NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.CREATING: frozenset({Phase.CREATED, Phase.STOPPING}),
    Phase.CREATED: frozenset({Phase.WAITING, Phase.STARTING, Phase.STOPPING}),
    Phase.WAITING: frozenset({Phase.STARTING, Phase.STOPPING}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.STOPPING}),
    Phase.RUNNING: frozenset({Phase.STOPPING}),
    Phase.STOPPING: frozenset({Phase.STOPPED}),
    Phase.STOPPED: frozenset(),
}


def may_become(phase: Phase, following: Phase) -> bool:
    return following in _NEXT[phase]


class Ending(msgspec.Struct, frozen=True):
    """How a container ended.

    Attributes:
        status: The exit status; -1 if only the engine knows it.
        reason: A word for programs (`org.scrun.reason`): a key of `TAKEN`, "exited", "killed"...
        text: One line for people; empty when the container just ended by itself.
        shown: Whether the container's standard error already has that line.
    """

    status: int
    reason: str
    text: str = ""
    shown: bool = False


def as_it_ended(ending: Ending, process: Ending) -> Ending:
    """Return an ending with the exit status of the container's process; -1 is unknown."""
    return msgspec.structs.replace(ending, status=process.status)


TAKEN = {
    "node-failure": 120,
    "preempted": 121,
    "cancelled": 122,
    "time-limit": 124,  # as timeout(1)
    "scrun-failure": 125,  # as docker(1) and podman(1) for their own faults
    "out-of-memory": 137,  # as for a process that the kernel has killed
}
"""Exit statuses of containers that did not end by themselves. 126, 127 and those from 128 on mean
what they mean in a shell: cannot be executed, not found, killed by a signal."""


def taken(reason: str, text: str, *, shown: bool = False) -> Ending:
    """Return the ending of a container whose job was taken away."""
    return Ending(TAKEN[reason], reason, shortened(text), shown)


def killed(signal: int, text: str = "") -> Ending:
    return Ending(128 + signal, "killed", text)


def exited(status: int) -> Ending:
    """Return the ending of a container whose process ended with `status` (128+n for signals)."""
    return Ending(status, "exited")


def not_run(status: int, text: str = "", *, shown: bool = False) -> Ending:
    """Return the ending for a program that could not be run, with a shell's status: 126 or 127."""
    return Ending(status, "not-found" if status == 127 else "not-executable", text, shown)


def not_running(container: str) -> str:
    """Say that a container is stopped, in runc's words, which containerd looks for."""
    return f"{NOT_RUNNING}: {container} is stopped"


class SignalAction(enum.Enum):
    """What `kill` does, by the container's phase."""

    DELIVER = "deliver"
    END = "end"
    IGNORE = "ignore"
    REFUSE = "refuse"
    TOO_LATE = "too late"


FATAL = frozenset({1, 2, 3, 9, 15})  # HUP INT QUIT KILL TERM: somebody wants it to end


def answer_to_signal(phase: Phase, signal: int, stop_signal: int = 0) -> SignalAction:
    """Tell what a signal does to a container in a phase.

    Before the step there is no process. A signal that should end the container ends it, and its
    job is released at once. A created or waiting container ignores all others, as the init of a
    PID namespace ignores signals without a handler. While it is creating, they are refused: there
    is nothing to signal yet (runtime.md, Kill).

    `stop_signal` is the signal with which its engine stops it; 0 if unknown.
    """
    if phase in (Phase.STARTING, Phase.RUNNING):
        return SignalAction.DELIVER
    if phase is Phase.STOPPED:
        return SignalAction.TOO_LATE
    if phase is Phase.STOPPING:
        # callers still see it running; podman and docker race with the end
        return SignalAction.IGNORE
    if signal in FATAL or 0 < signal == stop_signal:
        return SignalAction.END
    return SignalAction.REFUSE if phase is Phase.CREATING else SignalAction.IGNORE
