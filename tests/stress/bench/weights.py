"""What processes weigh: memory, wake-ups and time."""

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.harness.processes import voluntary_switches

SETTLED = 24.0
"""Seconds after which threads have ended that served what has just happened, and both ends of a
connection to a shim have said, once, that nothing was left out."""

_QUIET = 10.0
_SIZES = ("Rss", "Pss", "Private")


@dataclass(frozen=True, slots=True)
class Weight:
    """What some processes use: KiB, counts, wake-ups and milliseconds of CPU per minute."""

    processes: int
    threads: int
    rss: int
    pss: int
    private: int
    wakeups: float
    cpu: float


def weigh(groups: dict[str, list[int]]) -> dict[str, Weight]:
    """Weigh processes by group, over a quiet time."""
    before = {kind: spent(pids) for kind, pids in groups.items()}
    time.sleep(_QUIET)
    found = {}
    for kind, pids in groups.items():
        memory = [_memory(pid) for pid in pids]
        rss, pss, private = (sum(each[name] for each in memory) for name in _SIZES)
        wakeups, cpu = (
            (now - then) * 60 / _QUIET for now, then in zip(spent(pids), before[kind], strict=True)
        )
        threads = sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids)
        found[kind] = Weight(len(pids), threads, rss, pss, private, wakeups, cpu)
    return found


def spent(pids: Iterable[int]) -> tuple[float, float]:
    """Wake-ups and milliseconds of CPU so far."""
    tick = 1000 / os.sysconf("SC_CLK_TCK")
    wakeups = cpu = 0.0
    for pid in pids:
        wakeups += voluntary_switches(pid)
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        cpu += (int(fields[11]) + int(fields[12])) * tick
    return wakeups, cpu


def _memory(pid: int) -> dict[str, int]:
    """Rss, Pss and Private of a process, in KiB."""
    found: dict[str, int] = defaultdict(int)
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("Rss", "Pss", "Private_Clean", "Private_Dirty"):
                found[name.partition("_")[0]] += int(rest.split()[0])
    return found
