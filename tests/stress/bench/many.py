"""How time, memory and descriptors grow with the number of containers."""

import os
import statistics
import time

from tests.stress.bench.figures import Goal, growth, table
from tests.stress.bench.idle import SETTLED, weigh
from tests.stress.bench.stand import Made, Stand

_STEPS = 10


class Many:
    """A thousand containers, made and removed in ten steps."""

    def __init__(self, stand: Stand, count: int) -> None:
        self._stand = stand
        self._count = count
        self._rows: list[dict[str, float]] = []
        self._idle: dict[str, float] = {}

    def round(self) -> None:
        """Make all, measure at each step, remove all."""
        made: list[list[Made]] = []
        for _ in range(_STEPS):
            made.append([])
            times: dict[str, list[float]] = {"create": [], "start": [], "state": []}
            for _ in range(self._count // _STEPS):
                began = time.perf_counter()
                each = self._stand.create(self._stand.sleep)
                created = time.perf_counter()
                each.take("", "start")
                started = time.perf_counter()
                each.take("", "state")
                times["state"].append(time.perf_counter() - started)
                times["start"].append(started - created)
                times["create"].append(created - began)
                made[-1].append(each)
            made[-1][-1].runs()  # users may have no more than 200 keyrings: then run it as root
            row = {name: statistics.median(taken) for name, taken in times.items()}
            self._rows.append({"containers": sum(map(len, made)), **row, **self._supervisor()})
        pid = self._stand.site.supervisors()[0]
        time.sleep(SETTLED)
        weight = weigh({"supervisor": [pid]})["supervisor"]
        self._idle = {"wake-ups": weight.wakeups, "cpu": weight.cpu}
        for row in reversed(self._rows):
            times = {"delete": []}
            for each in made.pop():
                began = time.perf_counter()
                each.take("", "delete", "--force")
                times["delete"].append(time.perf_counter() - began)
                each.wait()
            row["delete"] = statistics.median(times["delete"])

    def _supervisor(self) -> dict[str, float]:
        """What the supervisor has: KiB, descriptors, threads."""
        pid = self._stand.site.supervisors()[0]
        found = {"fds": float(len(os.listdir(f"/proc/{pid}/fd")))}
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name == "VmRSS":
                    found["rss"] = float(rest.split()[0])
        return found

    def table(self) -> str:
        """Return the figures."""
        timed = ("create", "start", "state", "delete")
        rows = [
            [f"{row['containers']:g}"]
            + [f"{row[name] * 1e3:.1f}" for name in timed]
            + [f"{row['rss']:g}", f"{row['fds']:g}"]
            for row in self._rows
        ]
        head = ["containers", *(f"{name} ms" for name in timed), "supervisor's RSS KiB", "its fds"]
        text = table(head, rows)
        text += f"\nAll of them idle: {self._idle['wake-ups']:g} wake-ups of the supervisor and "
        return text + f"{self._idle['cpu']:g} ms of CPU per minute.\n"

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""

        def slope(name: str) -> float:
            return growth([(row["containers"], row[name]) for row in self._rows])

        # a time for one container that grows like their number is a sum that grows like its square
        each = [Goal(f"time of one `{name}`", "their number, exponent", slope(name), 0.2)
                for name in ("create", "start", "state", "delete")]  # fmt: skip
        return [
            *each,
            Goal("the supervisor's memory", "their number, exponent", slope("rss"), 1.0),
            Goal("its descriptors", "their number, exponent", slope("fds"), 1.0),
            Goal("wake-ups of all, idle", "none", self._idle["wake-ups"], 0),
        ]
