"""What rootless podman takes with scrun in a warm job, beside runc on this machine.

crun 1.8.1 refuses the hybrid cgroups of the test machines when buildah calls it.

Records of both are in memory, and staged bundles on a disk, as where nodes are other machines. It
needs root, and calls podman as the user.
"""

import subprocess
import tempfile
import time

from tests.harness.buildah import OCI
from tests.harness.podman import RUN, Podman, podman_of
from tests.harness.users import User
from tests.stress.bench.figures import Goal, Times

RUNS, BUILDS = "`podman run --rm true`, {}", "`podman build` of 20 steps, {}"
SCRUN, RUNC = "scrun, warm", "runc"
_STEPS = 20
_ROUNDS_OF_A_BUILD = 5
_SETTINGS = 'linger = 10\n[staging]\nscratch = "/var/tmp/scrun-bench-%u"\n'


class PodmanRuns:
    """Containers and builds, in turn with each runtime in each round."""

    def __init__(self, user: User) -> None:
        """Know whose containers they are."""
        self.times = Times()
        self._user = user

    def measure(self, rounds: int) -> None:
        """Take all measurements."""
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

    def _run(self, podman: Podman, runtime: str) -> None:
        self._take(RUNS.format(runtime), podman, runtime, *RUN, "--rm", "busybox", "true")

    def _take(self, what: str, podman: Podman, runtime: str, *words: str) -> None:
        chosen = () if runtime == SCRUN else ("--runtime", runtime)
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
        return [
            Goal(RUNS.format(SCRUN), RUNC, run, 1.3),
            Goal(BUILDS.format(SCRUN), RUNC, build, 1.5),
        ]
