"""What 32 tasks of a step cost that each run a container, beside bare crun and podman.

All of them run in one job that is held, on one node. podman has runc, as crun 1.8.1 refuses the
hybrid cgroups of the test machines when podman calls it. The processor time is that of the whole
machine, as most of it is spent below Slurm's daemons: run nothing else meanwhile.
"""

import contextlib
import os
import time

from tests.harness.podman import RUN, Podman, podman_of
from tests.stress.bench.figures import Goal
from tests.stress.bench.stand import Stand, memory_root

TASKS = 32
_TICKS = os.sysconf("SC_CLK_TCK")
_CRUN = f"`srun -n{TASKS} crun run`"
_PODMAN = f"`srun -n{TASKS} podman run` with runc"
_OURS = f"`srun -n{TASKS} scrun run IMAGE true`"
_FIRST = f"{_OURS}, the first ones of their kind"
_EACH = 'exec "$@" "c$SLURM_PROCID"'


class Tasks:
    """Each kind in turn in each round."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._stack = contextlib.ExitStack()
        self._job = self._stack.enter_context(stand.job())
        place = memory_root(f"{stand.site.base.name}.tasks")
        self._root = str(place)
        bundle = stand.site.bundle(stand.site.mapped("true"))
        crun = ["crun", "--cgroup-manager=disabled", "--root", f"{self._root}.crun"]
        self._crun = ["sh", "-c", _EACH, "sh", *crun, "run", "--bundle", str(bundle)]
        self._podman: Podman | None = None
        if stand.site.user.uid:
            self._podman = self._stack.enter_context(
                podman_of(stand.site.user, storage="overlay", in_memory=True)
            )

    def warm_up(self) -> None:
        """Fill the caches: but for those of the first containers of a kind."""
        self.round()
        self._stand.times.taken.clear()

    def round(self) -> None:
        command = [self._stand.site.command[0], "--root", self._root, "run"]
        image = str(self._stand.site.rootfs)
        self._take(_CRUN, *self._crun)
        # another word, another kind
        self._take(_FIRST, *command, f"--env=ROUND={time.time_ns()}", image, "true")
        self._take(_OURS, *command, image, "true")
        if self._podman is not None:
            podman = [*self._podman.command, "--runtime", "runc", *RUN]
            variables = [f"{name}={text}" for name, text in self._podman.environment.items()]
            self._take(_PODMAN, "env", *variables, *podman, "--rm", "busybox", "true")

    def _take(self, what: str, *command: str) -> None:
        srun = ["srun", "--quiet", f"--jobid={self._job}", "-N1", f"-n{TASKS}", "-O"]
        before = _busy()
        self._stand.take(what, *srun, *command)
        self._stand.times.add(f"{what}, processors", _busy() - before)

    def close(self) -> None:
        """Release the job, and end what may be left."""
        self._stack.close()

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        median = self._stand.times.median
        found = []
        for kind in ("", ", processors"):
            ours = median(_OURS + kind)
            found.append(Goal(_OURS + kind, _CRUN, ours / median(_CRUN + kind), 2))
            found.append(
                Goal(_FIRST + kind, _CRUN, median(_FIRST + kind) / median(_CRUN + kind), 4)
            )
            if self._podman is not None:
                found.append(Goal(_OURS + kind, _PODMAN, ours / median(_PODMAN + kind), 0.5))
        return found


def _busy() -> float:
    """Return the seconds that the machine's processors have worked since its boot."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / _TICKS
