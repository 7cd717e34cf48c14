"""Passes on to containers what Slurm tells the step by a signal (see the package's docstring)."""

import _signal as signal  # without enum, which takes longer than hello
import time

from .processes import children_of, handles, kill_quietly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .containers import NodeContainers
    from .loop import Loop
    from .targets import NodeProcess

_BEGINNING = 2.0  # in which a program may come to handle a signal
_TRY = 0.04
_TWICE = 1.0  # 24.11 sends SIGTERM, SIGCONT and SIGTERM again at a time limit
_BOTH = 2.0  # from Slurm's SIGTERM for a step to the one for a batch script's `scrun run`
_LATE = 0.5  # a SIGTERM for a job, behind the end of srun, which got one


class SlurmSignals:
    """The signals that arrived, and who has still to get them."""

    def __init__(self, loop: "Loop", begin: "dict[str, Any]") -> None:
        """Know of none; `begin` is the call."""
        self._loop = loop
        self._reaches_all: bool = begin["reaches_all"]
        self._kill_wait = float(begin["kill_wait"])
        self._early: list[int] | None = []
        self._expected: dict[str, list[int]] = {}
        self._asked = self._told_to_end = 0.0

    def came(self, number: int, containers: "NodeContainers | None") -> None:
        """Pass one on; containers that do not run yet get it when they do."""
        if number == signal.SIGTERM:
            before, self._told_to_end = self._told_to_end, time.monotonic()
            if self._told_to_end < before + _TWICE:
                return
        if self._early is not None:
            _keep(self._early, number)
        for signals in self._expected.values():
            _keep(signals, number)
        for target in _living(containers):
            waiting = bool(target.signals)
            if target.started and self._reaches_all and not waiting:
                continue
            if number == signal.SIGTERM and target.told_to_end > time.monotonic() - _BOTH:
                continue
            _keep(target.signals, number)
            if target.started and not waiting:
                self._give(target, containers)

    def expect(self, names: "Iterable[str]", containers: "NodeContainers | None") -> None:
        """Know, by their names, all containers that are still to be made.

        The first ones were there before us, so what came before is for them, too. One that is
        there already was made while this was on its way.
        """
        early, before = self._early or [], self._expected
        there = {one.name for one in _living(containers) if one.container is None}
        self._expected = {
            name: before.get(name, list(early)) for name in names if name not in there
        }
        self._early = None

    def made(self, target: "NodeProcess") -> None:
        """Keep for a container the signals since its staging; for the first one, all."""
        if target.container is None:
            target.signals = self._expected.pop(target.name, self._early or [])
            self._early = None

    def started(self, target: "NodeProcess", containers: "NodeContainers") -> None:
        """Give a container or an exec what came before its program ran."""
        target.began = time.monotonic()
        self._give(target, containers)

    def is_told(self, target: "NodeProcess", number: int) -> bool:
        """Tell whether a target need not get a signal that its supervisor has for it.

        Slurm tells a batch script of the end of its job, too, and a `scrun run` that it runs
        passes that on. Each program is told once, by whatever comes first.
        """
        if number != signal.SIGTERM or not (target.started and target.pid):
            return False
        now = time.monotonic()
        if self._told_to_end > max(now - _BOTH, target.began):
            return True
        target.told_to_end = now
        return False

    def _give(self, target: "NodeProcess", containers: "NodeContainers | None") -> None:
        """Give a target the signals that it has still to get.

        A program that has just begun gets them once it handles them, and nothing tells when. The
        first process of a PID namespace does not notice a signal that it does not handle, others
        die of it: so does a program that `srun` runs.
        """
        if not target.signals or not target.pid:
            return
        is_new = time.monotonic() < target.began + _BEGINNING
        if not is_new or all(_handles(target, number) for number in target.signals):
            _deliver(target, target.signals.pop(0), containers)
        # one after the other: of those that wait, the kernel passes on the lowest first
        if target.signals:
            self._loop.after(_TRY, lambda: self._give(target, containers))

    @property
    def job_ends(self) -> bool:
        """Whether Slurm has sent SIGTERM, and SIGKILL may follow."""
        return bool(self._told_to_end) and time.monotonic() < self._told_to_end + self._kill_wait

    def time_left(self, containers: "NodeContainers | None") -> float:
        """Return for how many seconds programs may go on without a supervisor.

        They may if they use the time between Slurm's SIGTERM and SIGKILL. That ends who started
        the step as well, perhaps before we get the SIGTERM.
        """
        if not any(is_busy(target, signal.SIGTERM) for target in _living(containers)):
            return 0
        now = time.monotonic()
        self._asked = self._asked or now
        until = self._asked + _LATE
        if self._told_to_end:
            until = max(until, self._told_to_end + self._kill_wait)
        return max(0.0, until - now)


def is_busy(target: "NodeProcess", number: int) -> bool:
    """Tell whether a target's program runs, and does something about a signal."""
    return bool(target.started and target.pid) and _handles(target, number)


def _living(containers: "NodeContainers | None") -> "Iterable[NodeProcess]":
    targets = [] if containers is None else list(containers.targets.values())
    return [one for one in targets if not (one.ended or one.doomed)]


def _keep(signals: "list[int]", number: int) -> None:
    if number not in signals:  # as the kernel does with one that waits
        signals.append(number)


def _handles(target: "NodeProcess", number: int) -> bool:
    """Tell whether its first process does, of a runtime in the foreground the first child."""
    pids = [target.pid]
    if target.is_by_foreground:
        pids = children_of(target.pid)[:1]
    return any(handles(pid, number) for pid in pids)


def _deliver(target: "NodeProcess", number: int, containers: "NodeContainers | None") -> None:
    """Do what slurmstepd does to a task."""
    # RunTimeRun passes it on; what an exec runs may be another user's
    if target.site is not None or target.container is not None:
        kill_quietly(target.pid, number)
    elif containers is not None and target.pid:
        containers.deliver(target, number)
