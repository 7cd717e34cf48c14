"""Passes on to containers what Slurm tells the step by a signal (see the package's docstring)."""

import _signal as signal  # without enum, which takes longer than hello
import time

from .processes import children_of, handles, kill_quietly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .containers import Containers
    from .loop import Loop
    from .targets import Target

_BEGINNING = 2.0  # in which a program may come to handle a signal
_TRY = 0.04
_TWICE = 1.0  # 24.11 sends SIGTERM, SIGCONT and SIGTERM again at a time limit
_LATE = 0.5  # a SIGTERM for a job, behind the end of srun, which got one


class SlurmSignals:
    """What came, and who has still to get it."""

    def __init__(self, loop: "Loop", begin: "dict[str, Any]") -> None:
        """Know of none; `begin` is the call."""
        self._loop = loop
        self._reaches_all: bool = begin["reaches_all"]
        self._kill_wait = float(begin["kill_wait"])
        self._early: list[int] = []
        self._had_containers = False
        self._asked = self._told_to_end = 0.0

    def came(self, number: int, containers: "Containers | None") -> None:
        """Pass one on; containers that do not run yet get it when they do."""
        if number == signal.SIGTERM:
            before, self._told_to_end = self._told_to_end, time.monotonic()
            if self._told_to_end < before + _TWICE:
                return
        if not self._had_containers:
            _keep(self._early, number)
        for target in _living(containers):
            waiting = bool(target.signals)
            if target.started and self._reaches_all and not waiting:
                continue
            _keep(target.signals, number)
            if target.started and not waiting:
                self._give(target, containers)

    def made(self, target: "Target") -> None:
        """Keep for the first container what came while it was staged."""
        self._had_containers = True
        target.signals, self._early = self._early, []

    def started(self, target: "Target", containers: "Containers") -> None:
        """Give a container what came before its program ran."""
        target.began = time.monotonic()
        self._give(target, containers)

    def _give(self, target: "Target", containers: "Containers | None") -> None:
        """Give a container the signals that it has still to get.

        A program that has just begun gets them once it handles them, of which nothing tells. The
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

    def time_left(self, containers: "Containers | None") -> float:
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


def is_busy(target: "Target", number: int) -> bool:
    """Tell whether the program of a container runs, and does something about a signal."""
    return bool(target.started and target.pid) and _handles(target, number)


def _living(containers: "Containers | None") -> "Iterable[Target]":
    targets = [] if containers is None else list(containers.targets.values())
    return [one for one in targets if one.container is None and not (one.ended or one.doomed)]


def _keep(signals: "list[int]", number: int) -> None:
    if number not in signals:  # as the kernel does with one that waits
        signals.append(number)


def _handles(target: "Target", number: int) -> bool:
    """Tell whether its first process does, of a runtime in the foreground the first child."""
    pids = [target.pid]
    if target.site is not None and target.site.runs:
        pids = children_of(target.pid)[:1]
    return any(handles(pid, number) for pid in pids)


def _deliver(target: "Target", number: int, containers: "Containers | None") -> None:
    """Do what slurmstepd does to a task."""
    if target.site is not None:  # RunTimeRun passes it on
        kill_quietly(target.pid, number)
    elif containers is not None and target.pid:
        containers.signal({"id": target.id, "number": number}, _ignore)


def _ignore(_: object) -> None:
    """Answer nobody."""
