"""What each container is like: decided by the seed and its number, and by nothing else. Pure."""

import random
from collections.abc import Sequence

import msgspec

from tests.stress.chaos.faults import (
    ANCHORED,
    DELETING,
    ENDING,
    ENGINES,
    KINDS,
    NONE,
    OWN,
    PODMAN,
    WAITING,
    WATCHED,
    Fault,
    Moment,
    not_at,
)

GROUP = 8
_OUTAGE_EVERY = 32
"""How many groups there are to one that has an outage."""
_QUIET = 0.25
_LOCAL = 0.4
_WAITS = 0.1
_KIND_WEIGHTS = dict(zip((*KINDS, *PODMAN), (5, 3, 3, 2, 3, 2, 1, 2, 1), strict=True))
_KIND_WEIGHTS.update(program=8, logs=4, attach=4)
_WINDOW = {
    Moment.CREATING: 0.25,
    Moment.CREATED: 0.05,
    Moment.STARTING: 0.08,
    Moment.WAITING: 0.05,
    Moment.RUNNING: 0.05,
    Moment.ENDING: 0.15,
    Moment.DELETING: 0.08,
}
"""Within how many seconds of a phase's begin a fault comes, about as long as the phase is."""


class Plan(msgspec.Struct, frozen=True):
    """One container.

    Attributes:
        number: Which one of the run.
        engine: Where.
        kind: What its container does.
        fault: What happens to it.
        moment: When; None if nothing happens.
        delay: Seconds after that moment's begin.
        pause: Seconds until what is stopped goes on.
        status: What the container exits with by itself.
        lines: How many lines it prints before, and after, it is told to go on.
        force: Whether `delete` is forced.
        waits: Whether its job stays in the queue until after `start`, longer than `create` does.
        pod: The number of its pod, or None.
        inside: Where its commands are called, one of `jobs.INSIDE`; "": on a login node.
        forwards: Whether it has a server, which is asked through `scrun forward`.
        network: Whether it has a network of an engine's, and its server is asked in there.
        files: Whether an engine has its root file system, and somebody looks at its files there.
    """

    number: int
    engine: str
    kind: str
    fault: Fault
    moment: Moment | None
    delay: float
    pause: float
    status: int
    lines: tuple[int, int]
    force: bool
    waits: bool = False
    pod: int | None = None
    inside: str = ""
    forwards: bool = False
    network: bool = False
    files: bool = False

    @property
    def is_beside(self) -> bool:
        """Whether its fault hits another member of its pod."""
        return self.pod is not None and self.moment is None and self.fault != NONE

    @property
    def has_volume(self) -> bool:
        """Whether it writes to a volume that the nodes do not see."""
        return self.engine == "slurm" and self.kind not in ANCHORED and not self.fault.disk

    @property
    def has_own_process(self) -> bool:
        """Whether its engine has the container's own first process, and no anchor."""
        return self.engine == "local" and self.kind in OWN

    def __str__(self) -> str:
        when = f"{self.moment.value} + {self.delay * 1e3:.0f} ms" if self.moment else "never"
        pod = "" if self.pod is None else f"pod {self.pod}, "
        inside = f"in {self.inside}, " if self.inside else ""
        return (
            f"container {self.number}: {pod}{inside}{self.engine}, {self.kind}, "
            f"{self.fault.name}, {when}"
        )


def draw(
    seed: int, number: int, engines: Sequence[str] = ENGINES, faults: Sequence[Fault] = (NONE,)
) -> Plan:
    """Draw what the container of a number is like."""
    if outage := _outage(seed, number, engines, faults):
        engines, faults = [outage[0]], [outage[1]]
    else:
        faults = [fault for fault in faults if not fault.outage]
    dice = random.Random(f"{seed}:{number}")
    engine = "local" if dice.random() < _LOCAL else "slurm"
    if engine not in engines:
        engine = engines[0]
    quiet = dice.random() < _QUIET and len(faults) > 1 and outage is None
    possible = [fault for fault in faults if engine in (fault.engines or ENGINES)]
    fault = NONE
    if possible and not quiet:
        [fault] = dice.choices(possible, [max(fault.weight, 1) for fault in possible])
    moment = dice.choice(fault.moments_on(engine)) if fault.moments else None
    kinds = fault.kinds_at(engine, moment)
    [kind] = dice.choices(kinds, [_KIND_WEIGHTS[kind] for kind in kinds])
    waits = moment is Moment.WAITING or dice.random() < _WAITS
    part = dice.random() ** 2  # what is done first takes the least time
    return Plan(
        number=number,
        engine=engine,
        kind=kind,
        fault=fault,
        moment=moment,
        delay=part * _WINDOW[moment] if moment else 0.0,
        pause=0.2 + dice.random() * 1.3,
        # a 0 that is not the container's own has to show
        status=0 if fault is NONE and dice.random() < 0.5 else dice.randint(40, 99),
        lines=(dice.randint(1, 200), dice.randint(0, 200)),
        force=dice.random() < 0.5,
        waits=waits and engine == "slurm" and kind not in (*PODMAN, *WATCHED),
    )


def draw_in_pod(seed: int, number: int, members: int, faults: Sequence[Fault]) -> Plan:
    """Draw what a member of a pod on Slurm is like: one of them has a fault.

    Args:
        seed: Of the run.
        number: The container's.
        members: How many containers a pod has.
        faults: Those of `in_pods`.
    """
    pod = number // members
    victim = pod * members + random.Random(f"{seed}:pod {pod}").randrange(members)
    plan = draw(seed, victim, ["slurm"], faults)
    if number != victim:
        fault = plan.fault.beside_it
        plan = msgspec.structs.replace(draw(seed, number, ["slurm"], [NONE]), fault=fault)
    return msgspec.structs.replace(plan, pod=pod, waits=False)


def draw_inside(
    seed: int,
    number: int,
    engines: Sequence[str],
    faults: Sequence[Fault],
    places: Sequence[str],
) -> Plan:
    """Draw what a container is like whose commands are called in a job.

    Args:
        seed: Of the run.
        number: The container's.
        engines: Where.
        faults: Those of `jobs.in_jobs`.
        places: Some of `jobs.INSIDE`.
    """
    plan = draw(seed, number, engines, faults)
    place = random.Random(f"{seed}:place {number}").choice(places)
    return msgspec.structs.replace(plan, inside=place, waits=False)


def in_pods(faults: Sequence[Fault]) -> list[Fault]:
    """Return those that a member of a pod can have: with the supervisor and the job of others."""
    possible = [fault for fault in faults if not (fault.own or fault.outage)]
    return not_at((WAITING,), without_podman(possible))


def without_podman(faults: Sequence[Fault]) -> list[Fault]:
    """Return those that do not hit podman."""
    return [fault for fault in faults if not {*fault.kinds} & {*PODMAN}]


def with_linger(faults: Sequence[Fault]) -> list[Fault]:
    """Return those of containers whose jobs wait for the next one.

    One that ends may have passed its job and its shim on: another container would be hit.
    """
    others = [fault for fault in faults if fault.beside_it == NONE]
    shared = [fault for fault in faults if fault not in others]
    return others + not_at((ENDING, DELETING), shared)


def _outage(
    seed: int, number: int, engines: Sequence[str], faults: Sequence[Fault]
) -> tuple[str, Fault] | None:
    """Draw whether the group of a container has an outage, where, and which.

    Each in its turn: of a thousand groups so few have one that chance would leave some out.
    """
    possible = [
        (engine, fault)
        for engine in engines
        for fault in faults
        if fault.outage and engine in fault.engines
    ]
    if number < 0 or not possible:
        return None
    every = 1 if all(fault.outage for fault in faults) else _OUTAGE_EVERY
    turn, position = divmod(number // GROUP, every)
    if random.Random(f"{seed}:turn {turn}").randrange(every) != position:
        return None
    random.Random(f"{seed}:troubles").shuffle(possible)
    return possible[turn % len(possible)]
