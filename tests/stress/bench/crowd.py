"""Many containers at once."""

import time
from concurrent.futures import ThreadPoolExecutor

from tests.stress.bench.figures import Goal, table
from tests.stress.bench.stand import Stand

SIZES = (1, 8, 32, 100)


class Crowd:
    """How long N containers of `true` at once take, and how many fail."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._failed = dict.fromkeys(SIZES, 0)
        self._walls: dict[tuple[str, int], list[float]] = {}

    def round(self) -> None:
        """Run each number once, beside the same number of bare jobs."""
        for size in SIZES:
            self._take("scrun", size)
            if self._stand.site.engine == "slurm":
                self._take("bare", size)

    def _take(self, kind: str, size: int) -> None:
        one = self._container if kind == "scrun" else self._bare
        began = time.perf_counter()
        with ThreadPoolExecutor(size) as threads:
            good = list(threads.map(one, range(size)))
        wall = time.perf_counter() - began
        self._walls.setdefault((kind, size), []).append(wall)
        if kind == "scrun":
            self._failed[size] += good.count(False)

    def _container(self, _: int) -> bool:
        try:
            made = self._stand.create(self._stand.true)
            made.take("", "start")
            status = made.wait()
            made.take("", "delete")
        except SystemExit as error:
            print(error)
            return False
        return status == 0

    def _bare(self, _: int) -> bool:
        words = ["salloc", "-Q", *self._stand.in_container("true")]
        return self._stand.popen(words).wait() == 0

    def _each(self, kind: str, size: int) -> float:
        """Wall time per container, in seconds."""
        walls = self._walls[kind, size]
        return sorted(walls)[len(walls) // 2] / size

    def table(self) -> str:
        rows = [
            [
                size,
                f"{self._each('scrun', size) * 1e3:.1f}",
                f"{1 / self._each('scrun', size):.1f}",
                self._failed[size],
                f"{self._each('bare', size) * 1e3:.1f}" if ("bare", size) in self._walls else "",
            ]
            for size in SIZES
        ]
        head = ["at once", "ms each", "per second", "failed", "ms each, bare"]
        return table(head, rows)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        ratio = self._each("scrun", 100) / self._each("scrun", 8)
        return [
            Goal("100 at once, failed", "none", float(self._failed[100]), 0),
            Goal("100 at once, time for each", "8 at once", ratio, 1.0),
        ]
