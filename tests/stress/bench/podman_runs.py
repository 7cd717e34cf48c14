"""What rootless podman takes with scrun in a warm job, beside runc on this machine, and at first.

The first run finds no supervisor: that of the user is ended before it.

crun 1.8.1 refuses the hybrid cgroups of the test machines when buildah calls it.

Records of both are in memory, and staged bundles on a disk, as where nodes are other machines. It
needs root, and calls podman as the user.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time

from tests.harness.buildah import OCI
from tests.harness.podman import RUN, Podman, podman_of
from tests.harness.users import User
from tests.harness.wait import wait_while
from tests.stress.bench.figures import Goal, Times

RUNS, BUILDS = "`podman run --rm true`, {}", "`podman build` of 20 steps, {}"
SCRUN, RUNC = "scrun, warm", "runc"
FIRST, OTHER = "scrun, the first", "another scrun, the first"
_STEPS = 20
_ROUNDS_OF_A_BUILD = 5
_SETTINGS = 'linger = 10\n[staging]\nscratch = "/var/tmp/scrun-bench-%u"\n'


class PodmanRuns:
    """Containers and builds, in turn with each runtime in each round."""

    def __init__(self, user: User, other: str | None = None) -> None:
        """Know whose containers they are, and another scrun to measure beside."""
        self.times = Times()
        self._user = user
        self._other = other

    def measure(self, rounds: int) -> None:
        with podman_of(
            self._user, storage="overlay", settings=_SETTINGS, in_memory=True
        ) as podman:
            self._run(podman, SCRUN)  # podman's first container leaves no job, the next one does
            for _ in range(1 + rounds):
                for runtime in (SCRUN, RUNC):
                    self._run(podman, runtime)
            for name in (SCRUN, RUNC):  # before the job was there, and the caches were full
                del self.times.taken[RUNS.format(name)][: 2 if name == SCRUN else 1]
            context = podman.site.base / "steps"
            context.mkdir()
            steps = [f"RUN echo {number}" for number in range(_STEPS)]
            (context / "Containerfile").write_text("\n".join(["FROM busybox", *steps]))
            self._user.give(context)
            for _ in range(max(1, rounds // _ROUNDS_OF_A_BUILD)):
                for runtime in (SCRUN, RUNC):
                    words = ("build", *OCI, "--no-cache", str(context))
                    self._take(BUILDS.format(runtime), podman, runtime, *words)

            for _ in range(1 + rounds):
                for runtime in (FIRST, OTHER) if self._other else (FIRST,):
                    _end_supervisors(podman)
                    self._run(podman, runtime)
            for runtime in (FIRST, OTHER):
                del self.times.taken.get(RUNS.format(runtime), [])[:1]

    def _run(self, podman: Podman, runtime: str) -> None:
        self._take(RUNS.format(runtime), podman, runtime, *RUN, "--rm", "busybox", "true")

    def _take(self, what: str, podman: Podman, runtime: str, *words: str) -> None:
        called = self._other if runtime == OTHER else runtime
        chosen = () if runtime in (SCRUN, FIRST) else ("--runtime", str(called))
        null = subprocess.DEVNULL
        with tempfile.TemporaryFile() as said:
            began = time.perf_counter()
            process = podman.popen(*chosen, *words, stdin=null, stdout=null, stderr=said.fileno())
            status = process.wait()
            self.times.add(what, time.perf_counter() - began)
            said.seek(0)
            assert status == 0, f"{what}: {said.read().decode(errors='replace')}"

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        median = self.times.median
        run = median(RUNS.format(SCRUN)) / median(RUNS.format(RUNC))
        build = median(BUILDS.format(SCRUN)) / median(BUILDS.format(RUNC))
        goals = [
            Goal(RUNS.format(SCRUN), RUNC, run, 1.3),
            Goal(BUILDS.format(SCRUN), RUNC, build, 1.5),
        ]
        if self._other:
            first = median(RUNS.format(FIRST)) / median(RUNS.format(OTHER))
            goals.append(Goal(RUNS.format(FIRST), OTHER, first, 0.7))
        return goals


def _end_supervisors(podman: Podman) -> None:
    """Let none serve the next container, and no job wait for it."""
    for pid in podman.site.supervisors():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
    wait_while("supervisors", podman.site.supervisors)
