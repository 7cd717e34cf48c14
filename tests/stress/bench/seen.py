"""What names, a comment and the audit add to a `create`.

It needs root, whose settings say what gets the audit; scrun is called as the user.
"""

import ctypes
import itertools
import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from tests.harness.audited import Audit, audited
from tests.harness.site import Site
from tests.harness.users import User
from tests.stress.bench.figures import Goal, Times
from tests.stress.bench.stand import CPU, memory_root

WITH, WITHOUT = "`create` with names, comment and audit", "`create` without them"
AGAIN = "`create` without them, once more"
"""What differs between it and the other one is this bench's own noise."""

_SETTINGS = 'idle_timeout = 600\n[slurm]\nlinger = 600\njob_name = "%p-%c-%i"\n'
_NAMES = {
    "io.kubernetes.container.name": "web",
    "io.kubernetes.cri.image-name": f"docker.io/library/nginx:1.27@sha256:{'0' * 64}",
}
_PR_SET_CHILD_SUBREAPER = 36
_UNTIL_QUIET = 0.1


class Seen:
    """Creates with all of them and with none, in turns; each comes into a job that is warm."""

    def __init__(self, engine: str, user: User) -> None:
        """Know whose containers they are."""
        self.times = Times()
        self._engine, self._user = engine, user
        self._numbers = 0
        self._supervisors: list[int] = []
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # anchors are waited for

    def measure(self, rounds: int) -> None:
        with audited() as audit, ExitStack() as stack:
            site = Site(self._engine, self._user, _SETTINGS)
            site.root = memory_root(site.base.name)
            stack.callback(shutil.rmtree, site.root, ignore_errors=True)
            stack.callback(site.close)
            site.command[-1] = str(site.root)
            del site.environment["SCRUN_WATCHDOG"]
            site.environment.pop("SCRUN_JOB_NAME", None)
            config = site.config("true")
            bundles = {what: site.bundle(config) for what in (WITHOUT, AGAIN)}
            bundles[WITH] = site.bundle({**config, "annotations": _NAMES})
            permutations = [*itertools.permutations(bundles)]
            for number in range(rounds + 1):
                self._supervisors = self._supervisors or site.supervisors()
                for what in permutations[number % len(permutations)]:
                    self._settings(audit, what)
                    self._create(site, bundles[what])  # the client notes which settings there are
                    taken, spent = self._create(site, bundles[what])
                    if number:  # first the job is made
                        self.times.add(what, taken)
                        self.times.add(what + CPU, spent)
            assert len(audit.lines()) == 2 * 2 * (rounds + 1)  # a `create` and an `end`

    def _settings(self, audit: Audit, what: str) -> None:
        if what == WITH:
            audit.wanted()
        else:
            Path("/etc/scrun/scrun.toml").write_text("")

    def _create(self, site: Site, bundle: Path) -> tuple[float, float]:
        """Return the seconds that a `create` took, and the supervisor's processor time for it."""
        self._numbers += 1
        container, pid_file = f"{self._numbers:064x}", site.base / "b" / "pid"
        spent, began = self._spent(), time.perf_counter()
        words = ("create", "--bundle", str(bundle), "--pid-file", str(pid_file), container)
        create = site.popen(*words, stdio=subprocess.DEVNULL)
        assert create.wait() == 0
        taken, spent = time.perf_counter() - began, self._spent() - spent
        site.must("delete", "--force", container)
        os.waitpid(int(pid_file.read_text()), 0)
        time.sleep(_UNTIL_QUIET)
        return taken, spent

    def _spent(self) -> float:
        """Return the supervisor's processor time: clock_getcpuclockid(3)."""
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in self._supervisors)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        goals = []
        for what, kind in itertools.product((WITH, AGAIN), ("", CPU)):
            more = self.times.more(what + kind, WITHOUT + kind)
            goals.append(Goal(f"{what}{kind}, ms more", WITHOUT, more * 1000, 0.3))
        return goals
