"""What the ways to launch a container cost, beside one another and the bare tools."""

import glob
import os
import shutil
import time
from contextlib import AbstractContextManager, nullcontext

from tests.stress.bench.figures import Goal
from tests.stress.bench.own import Own
from tests.stress.bench.stand import BARE, INTERPRETER, Stand, calls, memory_root

LIFE = "life of `true`"
PAUSED = "the same with 50 ms after `create`, without these"
BYTE = "`start` to the first byte"
OWN = f"{LIFE}, Slurm's own scrun"
EXEC = "`exec ID true`"
KILL = "`kill ID URG`"
BARE_BYTE = "bare `srun --container` to its first byte"
BARE_EXEC = "bare `crun exec`"
BARE_RUN = "bare `salloc` + `srun --container true`"
BARE_CALLS = "bare `salloc` + `srun`, an interpreter that calls crun's `create`, `start`, `delete`"

_PAUSE = 0.05
_WAYS = {
    "container": 'launch = "container"',
    "shim": 'launch = "shim"',
    "warm container": 'launch = "container"\nlinger = 60',
    "warm shim": 'launch = "shim"\nlinger = 60',
}


class Launches:
    """The ways, in turn in each round."""

    def __init__(self, stand: Stand, own: Own | None = None) -> None:
        """Write the settings of each; see `Own`."""
        self._stand = stand
        self._own = own
        self._owns = own.bundle("true") if own else stand.true
        self._says = stand.echo("echo x")
        self._scrun: dict[str, tuple[str, ...]] = {}
        for way, settings in _WAYS.items():
            name = way.replace(" ", "-")
            file = stand.site.base / f"{name}.toml"
            file.write_text(f'idle_timeout = 600\nstager = "builtin"\n[slurm]\n{settings}\n')
            root = memory_root(f"{stand.site.base.name}.{name}")
            binary = stand.site.command[0]
            self._scrun[way] = (binary, "--config-file", str(file), "--root", str(root))

    def warm_up(self) -> None:
        """Start the supervisors, fill the caches."""
        for way in _WAYS:
            with self._cluster(way):
                self._life(way)
        self._stand.times.taken.clear()

    def round(self) -> None:
        for way in _WAYS:
            with self._cluster(way):
                self._life(way)
                self._life(way, _PAUSE)
                self._first_byte(way)
                self._running(way)
        if self._own:
            self._stand.times.add(OWN, self._own.life(self._owns))
        with self._stand.with_oci_conf():
            self._bare_lives()
            self._bare_first_byte()

    def _cluster(self, way: str) -> AbstractContextManager[None]:
        return self._stand.with_oci_conf() if "container" in way else nullcontext()

    def _bare_first_byte(self) -> None:
        stand = self._stand
        with stand.job() as job:
            words = ["srun", f"--jobid={job}", *stand.in_container("sh", "-c", "echo x")[1:]]
            read, write = os.pipe()
            began = time.perf_counter()
            step = stand.popen(words, stdout=write)
            os.close(write)
            assert os.read(read, 1), "the container wrote nothing"
            stand.times.add(BARE_BYTE, time.perf_counter() - began)
            step.wait()
            os.close(read)

    def _bare_lives(self) -> None:
        """Measure the lives that Slurm's tools and crun have without scrun."""
        stand = self._stand
        in_container = stand.in_container("true")
        crun = shutil.which("crun")
        lives = {BARE_RUN: in_container}
        if crun is not None:
            bundle = in_container[in_container.index("--container") + 1]
            lives[BARE_CALLS] = ["srun", *calls(crun, bundle)]
        for what, (srun, *words) in lives.items():
            began = time.perf_counter()
            with stand.job() as job:
                stand.take("", srun, f"--jobid={job}", *words)
            stand.times.add(what, time.perf_counter() - began)

    def _life(self, way: str, pause: float = 0) -> None:
        stand = self._stand
        began = time.perf_counter()
        made = stand.create(stand.true, scrun=self._scrun[way])
        time.sleep(pause)
        made.take("", "start")
        made.wait()
        made.take("", "delete")
        taken = time.perf_counter() - began - pause
        stand.times.add(f"{PAUSED if pause else LIFE}, {way}", taken)

    def _first_byte(self, way: str) -> None:
        stand = self._stand
        read, write = os.pipe()
        made = stand.create(self._says, scrun=self._scrun[way], stdout=write)
        os.close(write)
        began = time.perf_counter()
        start = stand.popen([*self._scrun[way], "start", made.id])
        assert os.read(read, 1), "the container wrote nothing"
        stand.times.add(f"{BYTE}, {way}", time.perf_counter() - began)
        start.wait()
        made.wait()
        os.close(read)
        made.take("", "delete")

    def _running(self, way: str) -> None:
        """Measure what is done to a container that runs."""
        if way.startswith("warm"):
            return
        stand = self._stand
        made = stand.create(stand.sleep, scrun=self._scrun[way])
        made.take("", "start")
        made.runs()
        stand.take(BARE, *INTERPRETER)
        made.take(f"{EXEC}, {way}", "exec", "true")
        made.take(f"{KILL}, {way}", "kill", "URG")
        found = glob.glob(f"/dev/shm/scrun-{os.geteuid()}-*/crun/{made.id}")
        if found and (crun := shutil.which("crun")):
            root = os.path.dirname(found[0])
            stand.take(BARE_EXEC, crun, "--root", root, "exec", made.id, "true")
        made.remove()

    def close(self) -> None:
        """Release the jobs that wait, end the supervisors."""
        for way, scrun in self._scrun.items():
            with self._cluster(way):
                self._stand.take("", *scrun, "release")
            self._stand.end_supervisor(scrun[-1])
        if self._own:
            self._own.close()

    def goals(self) -> list[Goal]:
        """Return what should have been reached (docs/decisions/shim.md)."""
        median = self._stand.times.median
        old = median(f"{LIFE}, container")
        found = [
            Goal(f"{LIFE}, {way}", "`container`", median(f"{LIFE}, {way}") / old, limit)
            for way, limit in (("shim", 0.9), ("warm container", 0.9), ("warm shim", 0.5))
        ]
        paused = median(f"{PAUSED}, shim") / median(f"{PAUSED}, container")
        byte = median(f"{BYTE}, shim") / median(BARE_BYTE)
        found += [
            Goal(f"{PAUSED}, shim", "`container`", paused, 0.8),
            Goal(f"{BYTE}, shim", BARE_BYTE, byte, 0.4),
            Goal(f"{KILL}, shim, in ms", "nothing", median(f"{KILL}, shim") * 1e3, 15),
        ]
        if self._own:
            found += [
                Goal(
                    f"{LIFE}, {way}",
                    "Slurm's own scrun",
                    median(f"{LIFE}, {way}") / median(OWN),
                    goal,
                )
                for way, goal in (("shim", 1.4), ("warm shim", 0.9))
            ]
        if BARE_EXEC in self._stand.times.taken:
            bare = median(BARE, BARE_EXEC) + 0.005
            what = f"an interpreter, {BARE_EXEC} and 5 ms"
            found.append(Goal(f"{EXEC}, shim", what, median(f"{EXEC}, shim") / bare, 1))
        return found
