"""The container's state machine, and the ways it can end. Pure.

A container goes one way, and may stop from anywhere::

    creating ──> created ──> waiting ──> starting ──> running
        │           │ └─────────│──────────┘ │            │
        └───────────┴───────────┴─────┬──────┴────────────┘
                                      v
                                  stopping ──> stopped

`waiting` (it is started, but its job is still in the queue, or its bundle not staged yet),
`starting` (the step is on its way) and `stopping` (its end was asked for or has come, and its
changes are fetched) are ours: the runtime specification knows four states, and callers see them
as `running`.

Who may cause what: job and staged bundle make it *created*, or the end of the time that its
`create` waits for them (`create_timeout`); only `start` makes it *waiting*, or *starting* if
there is nothing to wait for; the engine's word that the task runs makes it *running*; anything
may make it *stopping*. What has no job yet is *stopped* at once; else the container's own task
tree makes it so, when its process has ended, its changes are fetched, and its anchor is told. The
job may be given back after that.
"""

import enum

import msgspec

from scrun.core.errors import NOT_RUNNING, shortened


class Phase(enum.Enum):
    """Where a container is in its life."""

    CREATING = "creating"
    CREATED = "created"
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"

    @property
    def status(self) -> str:
        """The runtime specification's name for it (runtime.md, State)."""
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
    """Tell whether the step from one phase to another exists."""
    return following in _NEXT[phase]


class Ending(msgspec.Struct, frozen=True):
    """How a container ended.

    Attributes:
        status: The exit status; -1 if only the engine knows it.
        reason: A word for programs (`org.scrun.reason`): a key of `TAKEN`, "exited", "killed"...
        text: One line for people; empty when the container just ended by itself.
        told: The container's standard error has that line already.
    """

    status: int
    reason: str
    text: str = ""
    told: bool = False


def as_it_ended(ending: Ending, process: Ending) -> Ending:
    """Return an ending with the exit status that the container's process really had.

    Args:
        ending: Why it has ended.
        process: How the process has ended; a status of -1 is not known.
    """
    return msgspec.structs.replace(ending, status=process.status)


TAKEN = {
    "node-failure": 120,
    "preempted": 121,
    "cancelled": 122,
    "time-limit": 124,  # as timeout(1) has it
    "scrun-failure": 125,  # as docker(1) and podman(1) have it for faults of theirs
    "out-of-memory": 137,  # as a process has it that the kernel has killed
}
"""Exit statuses of containers that did not end by themselves. 126, 127 and 128 and up are those
of shells: cannot be executed, not found, killed by a signal."""


def taken(reason: str, text: str, *, told: bool = False) -> Ending:
    """Return the ending of a container whose job was taken away."""
    return Ending(TAKEN[reason], reason, shortened(text), told)


def killed(signal: int, text: str = "") -> Ending:
    """Return the ending of a container that a signal ended."""
    return Ending(128 + signal, "killed", text)


def exited(status: int) -> Ending:
    """Return the ending of a container whose process ended with `status` (128+n for signals)."""
    return Ending(status, "exited")


def not_running(container: str) -> str:
    """Say that a container is stopped, in runc's words: containerd looks for them."""
    return f"{NOT_RUNNING}: {container} is stopped"


class SignalAction(enum.Enum):
    """What `kill` does with a container that does not run."""

    DELIVER = "deliver"
    END = "end"
    IGNORE = "ignore"
    REFUSE = "refuse"
    TOO_LATE = "too late"


FATAL = frozenset({1, 2, 3, 9, 15})  # HUP INT QUIT KILL TERM: somebody wants it to end


def answer_to_signal(phase: Phase, signal: int, stop_signal: int = 0) -> SignalAction:
    """Tell what a signal means to a container in a phase.

    Before the step there is no process yet. What asks for an end ends it (the job is given
    back at once). Anything else a container that is created or waits ignores, as the init of a
    PID namespace ignores signals without a handler; while it is creating the caller is told that
    there is nothing to signal yet (runtime.md, Kill).

    Args:
        phase: The phase.
        signal: The signal.
        stop_signal: The one by which its engine stops it; 0 if that is not known.
    """
    if phase in (Phase.STARTING, Phase.RUNNING):
        return SignalAction.DELIVER
    if phase is Phase.STOPPED:
        return SignalAction.TOO_LATE
    if phase is Phase.STOPPING:
        return (
            SignalAction.IGNORE
        )  # callers see it running yet; podman and docker race with the end
    if signal in FATAL or 0 < signal == stop_signal:
        return SignalAction.END
    return SignalAction.REFUSE if phase is Phase.CREATING else SignalAction.IGNORE
