"""The table of faults: whom they hit, when, and what is right then. Pure.

A fault either leaves the container alone, which then has to end with its own status and all of
its output, or it ends it, with one of the statuses for that in
docs/reference/exit-status.md. Moments that are a race (while something is created, started, ended
or deleted) may go either way.
"""

import enum
from collections.abc import Sequence

import msgspec


class Moment(enum.Enum):
    """When a fault comes."""

    CREATING = "creating"
    CREATED = "created"
    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    DELETING = "deleting"


ALL = tuple(Moment)
CREATING, CREATED, STARTING, WAITING, RUNNING, ENDING, DELETING = ALL
HELD = (CREATED, WAITING, RUNNING)
"""Moments in which the container waits until the fault has come: no race is in what follows."""

KINDS = ("status", "lines", "stdin", "terminal", "kill", "exec", "script", "stubborn")
ANCHORED = ("script",)
"""Kinds that have an anchor on this machine, too, and an OCI runtime beside it while they run."""
DETACHED = ("logs", "attach")
"""Kinds of `run --detach` whose output is followed; somebody types at a terminal of the second."""
WATCHED = ("program", *DETACHED)
"""Kinds beside which commands stay open, one of them with a program of `exec`."""
OWN = tuple(kind for kind in (*KINDS, "program") if kind not in ANCHORED)
"""Kinds whose engine has the container's own first process there."""
OF_IMAGES = tuple(kind for kind in KINDS if kind not in ANCHORED)
"""Kinds of containers with an image that the nodes do not see: no script stages them."""
_WATCHED_AT = {
    "program": (RUNNING,),
    **dict.fromkeys(DETACHED, (CREATING, RUNNING, ENDING, DELETING)),
}
PODMAN = ("podman",)
ENGINES = ("slurm", "local")
LAUNCHES = ("container", "shim")
"""What makes containers on the nodes: the cluster's oci.conf decides."""

_ADOPTED = ("supervisor-kill", "supervisor-term", "supervisors-kill", "supervisors-term")

TRAPPED = 33
"""What the containers exit with when they get TERM or INT."""


class Fault(msgspec.Struct, frozen=True):
    """One way to break something.

    Attributes:
        name: What it is called.
        target: Whom it hits.
        action: What is done: a signal, or the name of something in `actions`.
        moments: When.
        seen: What the user sees, and what is kept: `tools/chaos --list` prints it.
        ends: The statuses with which the container ends; empty if it goes on.
        surely: Whether it ends the container for sure when that waits for it.
        refuses: Whether what is being asked for at that moment may be refused.
        engines: Where.
        launches: With which launches on Slurm.
        kinds: Which kinds of containers.
        own: Whether the container has a supervisor of its own.
        weight: How often it comes, compared with others.
        outage: Whether it disturbs everybody: then a group of containers waits for it.
        slow: Whether it takes long: it is left out of short runs.
        before: Words before the call of `create`.
        beside: Who else is hit at the same moment, before it.
        point: Which of `tests.stress.chaos.points.POINTS` it comes at, or "".
        disk: Which directory is on a small file system of its own: "root", "scratch" or
            "store", of images: then it has an image that the nodes do not see.
        few_ports: Whether Slurm's tools and the supervisor may use a few ports only.
    """

    name: str
    target: str
    action: str
    moments: tuple[Moment, ...]
    seen: str
    ends: frozenset[int] = frozenset()
    surely: bool = True
    refuses: bool = True
    engines: tuple[str, ...] = ENGINES
    launches: tuple[str, ...] = LAUNCHES
    kinds: tuple[str, ...] = KINDS
    own: bool = False
    weight: int = 4
    before: tuple[str, ...] = ()
    outage: bool = False
    slow: bool = False
    beside: tuple[str, ...] = ()
    point: str = ""

    def moments_on(self, engine: str) -> tuple[Moment, ...]:
        """Those that come with an engine: only a job of Slurm's is waited for."""
        return tuple(m for m in self.moments if m is not WAITING or engine == "slurm")

    def kinds_at(self, engine: str, moment: Moment | None) -> tuple[str, ...]:
        """Those that have its target at a moment."""
        kinds = tuple(kind for kind in self.kinds if moment in _WATCHED_AT.get(kind, (moment,)))
        if engine == "slurm":
            return kinds
        hit = (self.target, *self.beside)
        anchored = "anchor" in hit and moment is not CREATING
        if anchored or ("runtime" in hit and moment is RUNNING):
            return ANCHORED
        return tuple(kind for kind in kinds if kind in OWN or "first" not in hit)

    @property
    def is_adopted(self) -> bool:
        """Whether another supervisor goes on with what is created, so that nothing shows."""
        return self.name in _ADOPTED

    @property
    def beside_it(self) -> "Fault":
        """What it is to the other members of its container's pod."""
        of_the_shim = self.target in ("shim", "srun", "stream") and self.launches == ("shim",)
        if self.target not in ("salloc", "job") and not of_the_shim:
            return NONE
        return msgspec.structs.replace(
            self, name=f"{self.name}, beside it", surely=False, moments=()
        )

    @property
    def when(self) -> str:
        """When it comes, in words."""
        names = "always" if self.moments == ALL else ", ".join(m.value for m in self.moments)
        names += "" if self.engines == ENGINES else f"; {self.engines[0]}"
        return names + ("" if self.launches == LAUNCHES else f", {self.launches[0]}")

    disk: str = ""
    few_ports: bool = False


def not_at(moments: Sequence[Moment], faults: Sequence[Fault]) -> list[Fault]:
    """Return faults without some of their moments; those that have no other one go."""
    left = ((fault, tuple(m for m in fault.moments if m not in moments)) for fault in faults)
    return [msgspec.structs.replace(fault, moments=kept) for fault, kept in left if kept]


NONE = Fault("none", "", "", (), "nothing breaks", refuses=False, weight=0)
