"""What one container on all nodes of the cluster costs, beside bare srun on them."""

import os
import shutil
import subprocess

from tests.stress.bench.figures import Goal
from tests.stress.bench.stand import Stand, calls

_BARE = "bare `srun` of `true` on {} nodes"
_BARE_RUNTIME = "bare `srun` of `crun run` on {} nodes"
_BARE_CALLS = "bare `srun` of an interpreter that calls crun's three on {} nodes"
_OURS = "one container of `true` on {} nodes"
_RUN = (
    'd=$(mktemp -d) && cp "$0/config.json" "$d" && ln -s "$0/rootfs" "$d/rootfs" && '
    'crun --root="$d/root" --cgroup-manager=disabled run --bundle="$d" c; s=$?; '
    'rm -rf "$d"; exit $s'
)


class Nodes:
    """As many tasks as nodes, one on each."""

    def __init__(self, stand: Stand) -> None:
        """Ask how many nodes there are."""
        self._stand = stand
        said = subprocess.run(
            ["sinfo", "-h", "-o", "%D"],
            env=stand.site.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        self.count = int(said.stdout.split()[0])
        config = stand.site.config("true")
        more = [f"SCRUN_JOB_NUM_NODES={self.count}", f"SCRUN_NTASKS={self.count}"]
        process = {**config["process"], "env": [*config["process"]["env"], *more]}
        self._bundle = stand.site.bundle({**config, "process": process})
        self._numbers = 0

    def warm_up(self) -> None:
        """Start the supervisor, fill the caches."""
        self.round()
        self._stand.times.taken.clear()

    def round(self) -> None:
        srun = ("srun", "--quiet", f"--nodes={self.count}", f"--ntasks={self.count}")
        self._take(_BARE, *srun, "true")
        plain = str(self._stand.plain)
        self._take(_BARE_RUNTIME, *srun, "sh", "-c", _RUN, plain)
        if (crun := shutil.which("crun")) is not None:
            self._take(_BARE_CALLS, *srun, *calls(crun, plain))
        self._numbers += 1
        name = f"nodes-{os.getpid()}-{self._numbers}"
        self._take(_OURS, *self._stand.site.command, "run", "--bundle", str(self._bundle), name)

    def _take(self, what: str, *command: str) -> None:
        self._stand.take(what.format(self.count), *command)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        ways = (_OURS, _BARE, _BARE_RUNTIME, _BARE_CALLS)
        ours, *bare = (what.format(self.count) for what in ways)
        times = self._stand.times
        return [Goal(ours, each, times.median(ours) / times.median(each), 1.5) for each in bare]
