"""What `podman cp` of a gibibyte takes, into a container that runs in a job and out of it.

scp copies the same file over the loopback, in both directions. It needs root, and calls podman as
the user.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tests.harness.overlays import begin, shared_store
from tests.harness.program import output_of
from tests.harness.squashfs import fuse_for_all
from tests.harness.sshd import laptop_of
from tests.harness.users import User, root
from tests.stress.bench.figures import Goal, Times

SIZE = 1 << 30
PODMAN, SCP = "`podman cp`", "`scp`"
WAYS = INTO, OUT = "1 GiB into a container, {}", "1 GiB out of a container, {}"
_PIECE = 1 << 24
_LONG = 600


class Files:
    """Copies, in turn in each direction and by each program in each round."""

    def __init__(self, user: User) -> None:
        """Know whose container it is."""
        self.times = Times()
        self._user = user

    def measure(self, rounds: int) -> None:
        fuse_for_all()
        with shared_store(user=self._user) as podman:
            base = podman.site.base
            laptop = base / "laptop"
            given, taken = base / "b" / "given", base / "b" / "taken"
            with open(given, "wb") as file:
                file.writelines(os.urandom(_PIECE) for _ in range(SIZE // _PIECE))
            self._user.give(given)
            container = begin(podman)
            there = f"{container}:/given"
            copy = [*podman.prefix, *podman.command, "cp"]
            with laptop_of(root(), laptop, {}) as login:
                ssh = ["scp", "-O", "-q", "-S", str(laptop / "bin" / "ssh")]
                far = login.url.replace("ssh:", "scp:") + f"/{laptop}/given"
                for _ in range(rounds):
                    for way, program, words in (
                        (INTO, PODMAN, [*copy, str(given), there]),
                        (INTO, SCP, [*ssh, str(given), far]),
                        (OUT, PODMAN, [*copy, there, str(taken)]),
                        (OUT, SCP, [*ssh, far, str(laptop / "taken")]),
                    ):
                        self._take(way.format(program), words, podman.environment, base)
                    podman.must("exec", container, "rm", "/given")
                    for path in (taken, laptop / "given", laptop / "taken"):
                        assert path.stat().st_size == SIZE, path
                        path.unlink()
            podman.must("rm", "--force", "--time", "0", container)

    def _take(
        self, what: str, words: Sequence[str], environment: dict[str, str], base: Path
    ) -> None:
        os.sync()  # else it writes what the one before has left to do
        began = time.perf_counter()
        output_of(words, env=environment, cwd=base, timeout=_LONG)
        self.times.add(what, time.perf_counter() - began)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        median = self.times.median
        return [
            Goal(
                f"{way.format(PODMAN)}, speed",
                SCP,
                median(way.format(SCP)) / median(way.format(PODMAN)),
                0.5,
                at_least=True,
            )
            for way in WAYS
        ]
