"""What idle containers weigh on the submit side, beside bare `salloc` + `srun`."""

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable

from tests.harness import cluster
from tests.harness.processes import Process, descendants, processes
from tests.stress.bench.adoption import adopt
from tests.stress.bench.figures import Goal, table
from tests.stress.bench.own import Own
from tests.stress.bench.stand import Stand
from tests.stress.bench.weights import SETTLED, Weight, weigh

_OURS = ("anchor", "supervisor", "keeper")


class Idle:
    """Idle containers by their number."""

    def __init__(self, stand: Stand, sizes: Iterable[int], own: Own | None = None) -> None:
        self._stand = stand
        self._own = own
        self._owns = own.bundle("sleep", "3600") if own else stand.sleep
        self._sizes = tuple(sizes)
        self._found: dict[tuple[str, int], dict[str, Weight]] = {}
        self._own_ones: dict[int, int] = {}

    def round(self) -> None:
        for size in self._sizes:
            self._scrun(size)
            if self._stand.site.engine == "slurm":
                self._bare(size)
            if self._own:
                self._weigh_own(self._own, size)
        if self._own:
            self._own.close()

    def _scrun(self, size: int) -> None:
        made = [self._stand.create(self._stand.sleep) for _ in range(size)]
        for each in made:
            each.take("", "start")
        # a container here has none under an engine; as the client it names no file of a site
        all_anchors = {process.pid for process in processes() if process.is_anchor}
        anchors = [each.anchor for each in made if each.anchor in all_anchors]
        self._found["scrun", size] = self._weighed(anchors)
        if self._can_be_adopted:
            adopt(self._stand.site.root, [each.id for each in made])
            self._found["adopted", size] = self._weighed(anchors)
        for each in made:
            each.remove()

    @property
    def _can_be_adopted(self) -> bool:
        return self._stand.site.engine == "local" or not cluster.has_oci_conf()

    def _weighed(self, anchors: list[int]) -> dict[str, Weight]:
        time.sleep(SETTLED)
        groups = defaultdict(list, {"anchor": anchors} if anchors else {})
        for process in self._submit_side():
            groups[_kind(process)].append(process.pid)
        return weigh(groups)

    def _bare(self, size: int) -> None:
        words = self._stand.in_container("sleep", "3600")
        with self._stand.with_oci_conf():
            held = [self._stand.popen(["salloc", "-Q", *words]) for _ in range(size)]
        self._found["bare", size] = _with_children(each.pid for each in held)
        for each in held:  # srun is told twice, then it ends its step
            for pid in descendants(each.pid):
                with open(f"/proc/{pid}/comm") as file:
                    if file.read().strip() == "srun":
                        os.kill(pid, 15)
                        break
        for each in held:
            each.wait()

    def _weigh_own(self, own: Own, size: int) -> None:
        """Weigh those of Slurm's own scrun that go on: some anchors end by themselves."""
        made = [own.create(self._owns) for _ in range(size)]
        there: list[int] | None = None
        while there != (there := [anchor for _, anchor in made if own.is_there(anchor)]):
            with contextlib.suppress(ProcessLookupError):
                self._found["own", size] = _with_children(there)
        self._own_ones[size] = len(there)
        for each in made:
            own.remove(*each)

    def _submit_side(self) -> list[Process]:
        """The site's processes without those inside the containers, or of its nodes."""
        site = self._stand.site
        inside = f"SITE={site.base}"
        found = [
            process
            for process in site.processes()
            if inside not in process.environment and not process.is_anchor
        ]
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
        rows = []
        columns = ("processes", "threads", "rss", "pss", "private", "wakeups", "cpu")
        for (kind, size), groups in self._found.items():
            for name, weight in sorted(groups.items()):
                cells = [f"{getattr(weight, column):g}" for column in columns]
                rows.append([f"{size}, {kind}", name, *cells])
            cells = [f"{self._sum(kind, size, column):g}" for column in columns]
            number = self._own_ones[size] if kind == "own" else size
            rows.append([f"{number}, {kind}", "**all**", *cells])
        units = ["RSS KiB", "PSS KiB", "private KiB", "wake-ups/min", "CPU ms/min"]
        return table(["containers", "process", "processes", "threads", *units], rows)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        largest = max(self._sizes)
        ours = self._ours("scrun", largest)
        found = [Goal(f"wake-ups of {largest} idle", "none", ours, 0)]
        if self._can_be_adopted:
            ratio = self._sum("adopted", largest, "pss") / self._sum("scrun", largest, "pss")
            ours = self._ours("adopted", largest)
            found.append(Goal(f"wake-ups of {largest} adopted", "none", ours, 0))
            found.append(Goal(f"PSS of {largest} adopted", "before", ratio, 1.05))
        if self._stand.site.engine == "slurm":
            ratio = self._sum("scrun", largest, "pss") / self._sum("bare", largest, "pss")
            found.append(Goal(f"PSS of {largest} idle", "`salloc` + `srun`", ratio, 1.15))
        if self._own:
            own = self._sum("own", largest, "pss") * largest / self._own_ones[largest]
            ratio = self._sum("scrun", largest, "pss") / own
            found.append(Goal(f"PSS of {largest} idle", "Slurm's own scrun", ratio, 1))
        return found

    def _ours(self, kind: str, size: int) -> float:
        """The wake-ups of what is ours: Slurm's own tools have theirs anyway."""
        groups = self._found[kind, size]
        return sum(groups[name].wakeups for name in _OURS if name in groups)


def _with_children(parents: Iterable[int]) -> dict[str, Weight]:
    """Weigh processes and their descendants, by their names."""
    time.sleep(SETTLED)
    groups = defaultdict(list)
    for parent in parents:
        for pid in (parent, *descendants(parent)):
            with open(f"/proc/{pid}/comm") as file:
                groups[file.read().strip().partition(":")[0]].append(pid)
    return weigh(groups)


def _kind(process: Process) -> str:
    """What a process of the submit side is."""
    if process.is_supervisor:
        return "supervisor"
    if process.is_keeper:
        return "keeper"
    return os.path.basename(process.argv[0])
