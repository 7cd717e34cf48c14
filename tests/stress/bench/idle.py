"""What idle containers weigh on the submit side, beside bare `salloc` + `srun`."""

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.harness.processes import Process, descendants, processes, voluntary_switches
from tests.stress.bench.figures import Goal, table
from tests.stress.bench.stand import Stand

_QUIET = 10.0
_SIZES = ("Rss", "Pss", "Private")
SETTLED = 12.0  # threads that served the starts end after 10 s


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
    before = {kind: _spent(pids) for kind, pids in groups.items()}
    time.sleep(_QUIET)
    found = {}
    for kind, pids in groups.items():
        memory = [_memory(pid) for pid in pids]
        rss, pss, private = (sum(each[name] for each in memory) for name in _SIZES)
        wakeups, cpu = (
            (now - then) * 60 / _QUIET
            for now, then in zip(_spent(pids), before[kind], strict=True)
        )
        threads = sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids)
        found[kind] = Weight(len(pids), threads, rss, pss, private, wakeups, cpu)
    return found


def _spent(pids: Iterable[int]) -> tuple[float, float]:
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


class Idle:
    """Idle containers by their number."""

    def __init__(self, stand: Stand, sizes: Iterable[int]) -> None:
        self._stand = stand
        self._sizes = tuple(sizes)
        self._found: dict[tuple[str, int], dict[str, Weight]] = {}

    def round(self) -> None:
        """Weigh each number once."""
        for size in self._sizes:
            self._scrun(size)
            if self._stand.site.engine == "slurm":
                self._bare(size)

    def _scrun(self, size: int) -> None:
        made = [self._stand.create(self._stand.sleep) for _ in range(size)]
        for each in made:
            each.take("", "start")
        time.sleep(SETTLED)
        groups = defaultdict(list)
        for process in self._submit_side():
            groups[_kind(process)].append(process.pid)
        self._found["scrun", size] = weigh(groups)
        for each in made:
            each.remove()

    def _bare(self, size: int) -> None:
        words = self._stand.in_container("sleep", "3600")
        held = [self._stand.popen(["salloc", "-Q", *words]) for _ in range(size)]
        time.sleep(SETTLED)
        groups = defaultdict(list)
        for each in held:
            for pid in (each.pid, *descendants(each.pid)):
                with open(f"/proc/{pid}/comm") as file:
                    groups[file.read().strip()].append(pid)
        self._found["bare", size] = weigh(groups)
        for each in held:  # srun is told twice, then it ends its step
            for pid in descendants(each.pid):
                with open(f"/proc/{pid}/comm") as file:
                    if file.read().strip() == "srun":
                        os.kill(pid, 15)
                        break
        for each in held:
            each.wait()

    def _submit_side(self) -> list[Process]:
        """The site's processes without those inside the containers, or of its nodes."""
        site = self._stand.site
        inside = f"SITE={site.base}"
        found = [process for process in site.processes() if inside not in process.environment]
        if site.engine == "local":
            return found
        nodes = {
            below
            for process in processes()
            if process.argv[0].startswith("slurmstepd")
            for below in (process.pid, *descendants(process.pid))
        }
        return [process for process in found if process.pid not in nodes]

    def _sum(self, kind: str, size: int, what: str) -> float:
        return float(sum(getattr(weight, what) for weight in self._found[kind, size].values()))

    def table(self) -> str:
        """Return the figures."""
        rows = []
        columns = ("processes", "threads", "rss", "pss", "private", "wakeups", "cpu")
        for (kind, size), groups in self._found.items():
            for name, weight in sorted(groups.items()):
                cells = [f"{getattr(weight, column):g}" for column in columns]
                rows.append([f"{size}, {kind}", name, *cells])
            cells = [f"{self._sum(kind, size, column):g}" for column in columns]
            rows.append([f"{size}, {kind}", "**all**", *cells])
        units = ["RSS KiB", "PSS KiB", "private KiB", "wake-ups/min", "CPU ms/min"]
        return table(["containers", "process", "processes", "threads", *units], rows)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        largest = max(self._sizes)
        found = [Goal(f"wake-ups of {largest} idle", "none", self._ours(largest), 0)]
        if self._stand.site.engine == "slurm":
            ratio = self._sum("scrun", largest, "pss") / self._sum("bare", largest, "pss")
            found.append(Goal(f"PSS of {largest} idle", "`salloc` + `srun`", ratio, 1.15))
        return found

    def _ours(self, size: int) -> float:
        """The wake-ups of anchors and supervisor: Slurm's own tools have theirs anyway."""
        groups = self._found["scrun", size]
        return sum(groups[kind].wakeups for kind in ("anchor", "supervisor") if kind in groups)


def _kind(process: Process) -> str:
    """What a process of the submit side is."""
    if process.is_supervisor:
        return "supervisor"
    if process.is_anchor:
        return "anchor"
    return os.path.basename(process.argv[0])
