"""Containers in a pool: how many a second, beside other ways, and what many idle ones weigh."""

import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.harness.processes import shims_of
from tests.harness.wait import wait_until
from tests.stress.bench.figures import Goal, table
from tests.stress.bench.own import Own
from tests.stress.bench.stand import INTERPRETER, LIFE, Made, Stand, memory_root
from tests.stress.bench.weights import SETTLED, weigh

LIVES = 200
"""Containers of `true` in a measurement of a rate."""

AT_ONCE = 32
TIMES = 20

IN_A_ROW, TOGETHER = f"{LIVES} in a row", f"{LIVES}, {AT_ONCE} at once"
_POOL, _OWN, _SRUN, _HQ = "pool", "Slurm's own scrun", "`srun` in a held job", "HyperQueue"
_CRUN, _CRUN_RUN = "crun's `create`, `start` and `delete` alone", "`crun run` alone"
"""What no way that makes containers by crun can exceed: by an engine's three calls, or by one."""

_WITH_HQ = """
import sys, time
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
crun, bundle, root = sys.argv[1:4]
lives, at_once = map(int, sys.argv[4:])
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=at_once))
    client = cluster.client()
    def run(first, count):
        job = Job()
        for number in range(first, first + count):
            words = [crun, "--root", root, "run", "--bundle", bundle, "hq%d" % number]
            job.program(words, stdout=None, stderr=None)
        client.wait_for_jobs([client.submit(job)])
    run(0, 2)
    began = time.perf_counter()
    run(2, lives)
    print("took %f" % (time.perf_counter() - began), flush=True)
"""
"""What HyperQueue is asked for, by an interpreter that has its package."""

_BY_CRUN = f"""{LIFE}
import itertools, sys, time
from concurrent.futures import ThreadPoolExecutor
path, bundle, root = sys.argv[1:4]
lives, at_once = map(int, sys.argv[4:])
crun, numbers = [path, "--cgroup-manager=disabled", "--root", root], itertools.count()
os.mkdir(root, 0o700)
def by_three_calls(_):
    name = "c%d" % next(numbers)
    life(crun, bundle, root + "/" + name + ".pid", name)
def by_one(_):
    call(crun, "run", "--bundle", bundle, "r%d" % next(numbers))
for way in by_three_calls, by_one:
    for threads in 1, at_once:
        began = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(way, range(lives)))
        print("took %f" % (time.perf_counter() - began), flush=True)
"""
"""Calls crun and nothing else, on a node."""


class Pool:
    """A pool of all of the cluster's nodes."""

    def __init__(
        self,
        stand: Stand,
        sizes: Sequence[int],
        own: Own | None = None,
        hyperqueue: str | None = None,
    ) -> None:
        """Prepare bundles.

        Args:
            sizes: How many idle ones are weighed, in ascending order.
            own: Slurm's own scrun, to measure its rate as well.
            hyperqueue: An interpreter with HyperQueue's package, likewise.
        """
        self._stand, self._sizes = stand, sizes
        self._own, self._hyperqueue = own, hyperqueue
        self._owns = own.bundle("true") if own else stand.true
        # a scrun.lua in /etc/slurm is for the other one
        settings = stand.site.base / "scrun.toml"
        settings.write_text(f'stager = "builtin"\n{settings.read_text()}')
        in_pool = {"annotations": {"slurm.pool": "bench"}}
        self._true = stand.site.bundle({**stand.site.config("true"), **in_pool})
        self._sleep = stand.site.bundle({**stand.site.config("sleep", "36000"), **in_pool})
        self._rates: dict[tuple[str, str], list[float]] = {}
        self._rows: list[dict[str, float]] = []
        self._asked = 0.0
        self._own_failed = 0

    @contextmanager
    def started(self, nodes: int, cpus: int) -> Iterator[None]:
        """Hold the pool while the block runs: jobs of so many nodes and processors each."""
        scrun = self._stand.site.command
        options = ("--nodes", str(nodes), "--cpus-per-task", str(cpus))
        self._stand.take("", *scrun, "pool", "start", "bench", *options)
        wait_until("its nodes", lambda: {node["state"] for node in self._nodes()} == {"idle"})
        self._life()
        try:
            yield
        finally:
            self._stand.take("", *scrun, "pool", "stop", "bench")

    # Rates

    def rates(self) -> None:
        """Measure each way once, one after the other and at once."""
        before = self._requests()
        self._take_rate(_POOL, self._life)
        self._asked += self._requests() - before
        if self._own:
            with self._stand.with_oci_conf():  # around all threads: it changes the environment
                self._take_rate(_OWN, self._own_life)
        with self._stand.with_oci_conf(), self._stand.job() as job:
            step = ["srun", f"--jobid={job}", "--overlap", "--ntasks=1"]
            step += self._stand.in_container("true")[1:]
            self._take_rate(_SRUN, lambda: self._stand.take("", *step))
            kinds = itertools.product((_CRUN, _CRUN_RUN), (IN_A_ROW, TOGETHER))
            for kind, rate in zip(
                kinds, self._on_node(job, INTERPRETER[0], _BY_CRUN), strict=True
            ):
                self._rates.setdefault(kind, []).append(rate)
            if self._hyperqueue:  # one after the other it looks once a second
                [rate] = self._on_node(job, self._hyperqueue, _WITH_HQ)
                self._rates.setdefault((_HQ, TOGETHER), []).append(rate)

    def _take_rate(self, way: str, life: Callable[[], object]) -> None:
        began = time.perf_counter()
        for _ in range(LIVES):
            life()
        self._rates.setdefault((way, IN_A_ROW), []).append(LIVES / (time.perf_counter() - began))
        began = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for done in [threads.submit(life) for _ in range(LIVES)]:
                done.result()
        self._rates.setdefault((way, TOGETHER), []).append(LIVES / (time.perf_counter() - began))

    def _life(self) -> None:
        made = self._stand.create(self._true)
        made.take("", "start")
        made.wait()
        made.take("", "delete")

    def _own_life(self) -> None:
        assert self._own is not None
        try:
            self._own.life(self._owns)
        except (SystemExit, OSError):  # anchors die when there are several, or leave no pid
            self._own_failed += 1

    def _on_node(self, job: str, python: str, script: str) -> list[float]:
        """Return the rates of containers that a script makes by crun, in a step of the job."""
        crun = shutil.which("crun")
        assert crun is not None
        root = memory_root(f"{self._stand.site.base.name}-crun")
        words = [crun, str(self._stand.plain), str(root), str(LIVES), str(AT_ONCE)]
        read, write = os.pipe()
        step = ["srun", f"--jobid={job}", "--overlap", "--ntasks=1", python, "-c", script]
        asked = self._stand.popen([*step, *words], stdout=write)
        os.close(write)
        with open(read, encoding="ascii", errors="replace") as answer:
            found = re.findall(r"took ([0-9.]+)", answer.read())  # HyperQueue draws tables, too
        self._stand.succeeds(asked)
        shutil.rmtree(root, ignore_errors=True)
        assert found, "nothing has said how long it took"
        return [LIVES / float(seconds) for seconds in found]

    def _nodes(self) -> list[dict[str, Any]]:
        stand = self._stand
        read, write = os.pipe()
        listed = stand.popen(
            [*stand.site.command, "pool", "list", "--format", "json"], stdout=write
        )
        os.close(write)
        with open(read) as answer:
            nodes: list[dict[str, Any]] = json.load(answer)
        stand.succeeds(listed)
        return nodes

    def _requests(self) -> int:
        """How often the stand's user has asked slurmctld (sdiag(1))."""
        said = subprocess.run(["sdiag"], capture_output=True, text=True, check=True).stdout
        _, _, users = said.partition("by user")
        found = re.search(rf"\( *{os.geteuid()}\) count:(\d+)", users)
        return int(found[1]) if found else 0

    # Idle ones

    def weigh(self) -> None:
        """Make as many as each size says, and weigh all at each; remove them."""
        made: list[Made] = []
        for size in self._sizes:
            creates = []
            while len(made) < size:
                began = time.perf_counter()
                made.append(self._stand.create(self._sleep))
                creates.append(time.perf_counter() - began)
                made[-1].take("", "start")
            self._rows.append({**self._weighed(made), "create": statistics.median(creates)})
        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(each.remove) for each in made]:
                done.result()

    def _weighed(self, made: list[Made]) -> dict[str, float]:
        stand, last = self._stand, made[-1]
        last.take("", "exec", "true")
        execs = [last.take("", "exec", "true") for _ in range(TIMES)]
        lists = [stand.take("", *stand.site.command, "list") for _ in range(5)]
        time.sleep(SETTLED)
        anchors = [each.anchor for each in made]
        known = stand.site.processes()
        supervisor = [one.pid for one in known if one.is_supervisor]
        keepers = [one.pid for one in known if one.is_keeper]
        weights = weigh({"anchor": anchors, "supervisor": supervisor, "keeper": keepers})
        jobs = [node["job_id"] for node in self._nodes()]
        # the first one of a job, whose children the others are; only root sees its environment
        shims = [min(found) for found in map(shims_of, map(str, jobs)) if found]
        return {
            "containers": len(made),
            "list": statistics.median(lists),
            "exec": statistics.median(execs),
            "pss": sum(weight.pss for weight in weights.values()) / len(made),
            "processes": len(anchors) / len(made),
            "wakeups": sum(weight.wakeups for weight in weights.values()),
            "fds": len(os.listdir(f"/proc/{supervisor[0]}/fd")) / len(made),
            "fds of shims": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in shims) / len(made),
            "pss of shims": sum(_pss(pid) for pid in shims) / len(made),
        }

    # What is found

    def table(self) -> str:
        ways = list(dict.fromkeys(way for way, _ in self._rates))
        rates = [
            [
                way,
                *(
                    f"{self._rate(way, what):.1f}" if (way, what) in self._rates else ""
                    for what in (IN_A_ROW, TOGETHER)
                ),
            ]
            for way in ways
        ]
        text = table(["`true`, per second", IN_A_ROW, TOGETHER], rates) if rates else ""
        if self._own:
            text += f"\n{self._own_failed} of {_OWN} failed.\n"
        head = ["containers", "create ms", "exec ms", "list ms", "PSS KiB each"]
        head += ["descriptors each", "shims' descriptors each", "shims' PSS KiB each", "wake-ups"]
        rows = [
            [
                f"{row['containers']:g}",
                *(f"{row[name] * 1e3:.1f}" for name in ("create", "exec", "list")),
                f"{row['pss']:.0f}",
                *(f"{row[name]:.1f}" for name in ("fds", "fds of shims")),
                f"{row['pss of shims']:.0f}",
                f"{row['wakeups']:g}",
            ]
            for row in self._rows
        ]
        return text + "\n" + table(head, rows)

    def _rate(self, way: str, what: str) -> float:
        return statistics.median(self._rates[way, what])

    def cells(self) -> list[dict[str, object]]:
        """Return what grows with the number of idle ones, for `tests.stress.results`."""
        return [
            {
                "containers": int(row["containers"]),
                "create, ms": row["create"] * 1e3,
                "exec, ms": row["exec"] * 1e3,
                "list, ms": row["list"] * 1e3,
                "PSS of each, KiB": row["pss"],
            }
            for row in self._rows
        ]

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        found = []
        for way, limit in ((_OWN, 5), (_SRUN, 3), (_HQ, 1)):
            for what in (IN_A_ROW, TOGETHER):
                if (way, what) in self._rates:
                    ratio = self._rate(_POOL, what) / self._rate(way, what)
                    name = f"`true` in a pool, {what}, per second"
                    found.append(Goal(name, way, ratio, limit, at_least=True))
        if self._rates:
            found.append(Goal("requests to slurmctld meanwhile", "none", self._asked, 20))
        if self._rows:
            one, all_of_them = self._rows[0], self._rows[-1]
            size = f"{all_of_them['containers']:g} idle in a pool"
            found += [
                Goal(f"{size}: PSS of each, MiB", "nothing", all_of_them["pss"] / 1024, 1.2),
                Goal(f"{size}: processes of each", "nothing", all_of_them["processes"], 1),
                Goal(f"{size}: `list`, s", "nothing", all_of_them["list"], 1),
                Goal(f"{size}: `exec`", "one alone", all_of_them["exec"] / one["exec"], 2),
                Goal(f"{size}: wake-ups", "none", all_of_them["wakeups"], 0),
            ]
        return found


def _pss(pid: int) -> int:
    """Return the PSS of a process, in KiB."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
