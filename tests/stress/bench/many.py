"""How time, memory and descriptors grow with the number of containers."""

import os
import statistics
import time
from collections.abc import Callable
from operator import itemgetter

from tests.stress.bench.figures import Goal, growth, table
from tests.stress.bench.stand import INTERPRETER, Made, Stand
from tests.stress.bench.weights import SETTLED, weigh

_STEPS = 10
_TIMED = ("create", "start", "state", "kill", "exec", "delete")
_BARE = "a bare interpreter"
_OTHERS = 10  # containers of each step that get a signal and run a program


class Many:
    """A thousand containers, here or in one job, made and removed in ten steps."""

    def __init__(self, stand: Stand, count: int) -> None:
        self._stand = stand
        self._count = count
        self._rows: list[dict[str, float]] = []
        self._idle: dict[str, float] = {}

    def round(self) -> None:
        """Make all, measure at each step, remove all."""
        made: list[list[Made]] = []
        stand = self._stand
        bundle = stand.member if stand.site.engine == "slurm" else stand.sleep
        for _ in range(_STEPS):
            made.append([])
            times: dict[str, list[float]] = {name: [] for name in (_BARE, *_TIMED[:-1])}
            for _ in range(self._count // _STEPS):
                began = time.perf_counter()
                each = stand.create(bundle)
                times["create"].append(time.perf_counter() - began)
                times["start"].append(each.take("", "start"))
                times["state"].append(each.take("", "state"))
                times[_BARE].append(stand.take("", *INTERPRETER))
                made[-1].append(each)
            for each in made[-1][:_OTHERS]:
                times["kill"].append(each.take("", "kill", "URG"))
                times["exec"].append(each.take("", "exec", "true"))
            made[-1][-1].runs()  # users may have no more than 200 keyrings: then run it as root
            row = {name: statistics.median(taken) for name, taken in times.items()}
            self._rows.append({"containers": sum(map(len, made)), **row, **self._supervisor()})
        pid = self._stand.site.supervisors()[0]
        time.sleep(SETTLED)
        weight = weigh({"supervisor": [pid]})["supervisor"]
        self._idle = {"wake-ups": weight.wakeups, "cpu": weight.cpu}
        for row in reversed(self._rows):
            times = {"delete": [], _BARE: []}
            for each in made.pop():
                times["delete"].append(each.take("", "delete", "--force"))
                times[_BARE].append(stand.take("", *INTERPRETER))
                each.wait()
            row["delete"] = statistics.median(times["delete"])
            row[f"{_BARE} beside delete"] = statistics.median(times[_BARE])

    def _supervisor(self) -> dict[str, float]:
        """What the supervisor and the shim have: KiB, descriptors."""
        pid = self._stand.site.supervisors()[0]
        found = {"fds": float(len(os.listdir(f"/proc/{pid}/fd"))), "rss": _rss(pid)}
        shims = [one.pid for one in self._stand.site.processes() if one.has_shim]
        return {**found, "shim": max(map(_rss, shims), default=0.0)}

    def table(self) -> str:
        rows = [
            [f"{row['containers']:g}"]
            + [f"{row[name] * 1e3:.1f}" for name in (*_TIMED, _BARE)]
            + [f"{row['rss']:g}", f"{row['shim']:g}", f"{row['fds']:g}"]
            for row in self._rows
        ]
        head = [
            "containers",
            *(f"{name} ms" for name in (*_TIMED, _BARE)),
            "supervisor's RSS KiB",
            "shim's",
            "supervisor's fds",
        ]
        text = table(head, rows)
        text += f"\nAll of them idle: {self._idle['wake-ups']:g} wake-ups of the supervisor and "
        return text + f"{self._idle['cpu']:g} ms of CPU per minute.\n"

    def cells(self) -> list[dict[str, object]]:
        """Return the times by the number of containers, in ms, for `tests.stress.results`."""
        return [
            {
                "containers": int(row["containers"]),
                **{f"{name}, ms": row[name] * 1e3 for name in _TIMED},
            }
            for row in self._rows
        ]

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""

        def slope(what: Callable[[dict[str, float]], float]) -> float:
            return growth([(row["containers"], what(row)) for row in self._rows])

        def slower(name: str) -> float:
            return slope(lambda row: row[name] / row[_beside(name)])

        # a time for one container that grows like their number is a sum that grows like its square
        each = [
            Goal(f"time of one `{name}`, in {_BARE}s", "their number, exponent", slower(name), 0.2)
            for name in _TIMED
        ]
        return [
            *each,
            Goal(
                "the supervisor's memory", "their number, exponent", slope(itemgetter("rss")), 1.0
            ),
            Goal("its descriptors", "their number, exponent", slope(itemgetter("fds")), 1.0),
            Goal("wake-ups of all, idle", "none", self._idle["wake-ups"], 0),
        ]


def _beside(name: str) -> str:
    """What took place beside an operation, on the same machine under the same load."""
    return f"{_BARE} beside delete" if name == "delete" else _BARE


def _rss(pid: int) -> float:
    """The memory of a process that is its own, or shared, in KiB."""
    with open(f"/proc/{pid}/status") as file:
        return next(float(line.split()[1]) for line in file if line.startswith("VmRSS:"))
