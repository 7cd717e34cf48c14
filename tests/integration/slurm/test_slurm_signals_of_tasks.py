"""A program whose `scrun run` is a task, or a script, of Slurm's gets signals as without scrun.

Slurm signals that `scrun run`: once or more often, long before the end or shortly before.
"""

import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.site import Site, scrun_binary
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise signals of Slurm's")

_LONGER = 7
"""Seconds: longer than a program has elsewhere after a signal that ends programs."""
_WAITS = """
sleep 600 >/dev/null 2>&1 & child=$!
echo up
until [ "$told" ]; do wait $child; done; :
"""
RUNS = f"trap 'echo INT' INT; trap 'echo HUP' HUP; trap 'echo TERM; told=1' TERM\n{_WAITS}"
SAVES = f"{RUNS}sleep {_LONGER} & wait $!\necho saved\nexit 3"
_OUTPUT = 'exec >>"/said/$SLURM_PROCID" 2>&1\n'
_TASKS = 3
"""The first has a supervisor, the others are made from its template."""


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """One that gives programs more time than we would."""
    longer = ("KillWait=2\n", "KillWait=30\n")
    with cluster.reconfigured(lambda text: (text or "").replace(*longer)):
        yield


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site("slurm-user", settings="idle_timeout = 20\n")


class Told:
    """Tasks that write down what they are told."""

    def __init__(
        self, site: Site, command: Sequence[str], count: int = 1, by: str = "srun "
    ) -> None:
        """Submit a script that begins them, all on one node; or without srun, one of its own."""
        self._place, self._count = site.base / "said", count
        script = self._place / "script"
        self._status = self._place / "status"
        script.write_text(f"#!/bin/sh\n{by}{shlex.join(command)}\necho $? >{self._status}\n")
        words = ("--parsable", "--nodes=1", f"--ntasks={count}", "--chdir=/")
        self.job = subprocess.run(
            [*site.user.prefix, "sbatch", *words, f"--output={self._place}/output", script],
            env=site.environment, capture_output=True, text=True, check=True, timeout=30,
        ).stdout.strip()  # fmt: skip

    def say(self, *words: str) -> None:
        """Wait until all have said this, and nothing else."""
        for task in range(self._count):
            file = self._place / str(task)
            wait_until(
                f"task {task} says {words}",
                lambda file=file: file.exists() and file.read_text().split() == [*words],  # type: ignore[misc]
                30,
            )

    def signal(self, name: str) -> None:
        """Have Slurm send a signal to the step."""
        cluster.slurm("scancel", f"--signal={name}", f"{self.job}.0")

    def cancel(self) -> None:
        cluster.slurm("scancel", self.job)

    def end(self) -> int:
        ended = lambda: self._status.exists() and self._status.read_text()  # noqa: E731
        return int(wait_until("srun ends", ended, 20))


@contextmanager
def begun(site: Site, *command: str, count: int = 1, by: str = "srun ") -> Iterator[Told]:
    """Have tasks, or a script, that run a command, which says `up`."""
    told = Told(site, command, count, by)
    try:
        told.say("up")
        yield told
    finally:
        cluster.slurm("scancel", told.job)
        wait_until("the job", lambda: not cluster.slurm("squeue", "-h", "-j", told.job), 40)


def called(site: Site, *words: str) -> list[str]:
    """How scrun is called, with a directory in containers for what they say."""
    place = site.base / "said"
    if not place.exists():
        place.mkdir()
        place.chmod(0o777)
    mount = ("--mount", f"{place}:/said") if words[0] == "run" else ()
    return [scrun_binary(), "--root", str(site.root), words[0], *mount, *words[1:]]


@contextmanager
def tasks(site: Site, script: str) -> Iterator[Told]:
    """Have tasks that run a script in containers of an image."""
    run = called(site, "run", str(site.rootfs), "sh", "-c", _OUTPUT + script)
    with begun(site, *run, count=_TASKS) as told:
        kept = [*Path(site.root, "@templates").iterdir()]
        assert any(file.stat().st_size for file in kept), "no template was used"
        yield told


def test_they_go_on_after_signals_that_they_handle(site: Site) -> None:
    with tasks(site, RUNS) as told:
        told.signal("INT")
        told.say("up", "INT")
        time.sleep(_LONGER)
        told.signal("HUP")
        told.say("up", "INT", "HUP")
        told.signal("INT")
        told.say("up", "INT", "HUP", "INT")
        time.sleep(_LONGER)
        told.signal("TERM")
        told.say("up", "INT", "HUP", "INT", "TERM")
        assert told.end() == 0


def test_they_have_the_time_that_slurm_gives(site: Site) -> None:
    with tasks(site, SAVES) as told:
        told.cancel()
        told.say("up", "TERM", "saved")


def test_they_are_told_once_of_their_end(site: Site) -> None:
    """Slurm 24.11 sends SIGTERM twice at a time limit; another one, later, counts."""
    counts = RUNS.replace("told=1", "times=x$times; [ $times != xx ] || told=1")
    with tasks(site, counts) as told:
        for _ in range(2):
            told.signal("TERM")
        time.sleep(1)
        told.say("up", "TERM")
        told.signal("TERM")
        told.say("up", "TERM", "TERM")
        assert told.end() == 0


@pytest.mark.parametrize("times", [nightly(1), 2])
def test_what_does_not_care_is_ended(site: Site, times: int) -> None:
    """After five seconds, or at the second: the kernel ends no first process of a namespace."""
    with tasks(site, "echo up; exec sleep 600") as told:
        began = time.monotonic()
        for _ in range(times):
            told.signal("INT")
            time.sleep(0.3)
        assert told.end() == 128 + 2
        assert (time.monotonic() - began < 4) == (times == 2)


def test_a_program_of_exec_goes_on(site: Site) -> None:
    name = f"{site.base.name}-exec"
    run = shlex.join(
        called(site, "run", "--detach", "--name", name, str(site.rootfs), "sleep", "600")
    )
    more = shlex.join(called(site, "exec", name, "sh", "-c", f"exec >>/said/0\n{RUNS}"))
    with begun(site, "sh", "-c", f"{run} && exec {more}") as told:
        told.signal("INT")
        time.sleep(_LONGER)
        told.signal("INT")
        told.say("up", "INT", "INT")
        for _ in range(2):
            told.signal("TERM")
        told.say("up", "INT", "INT", "TERM")
        assert told.end() == 0
    site.must("delete", "--force", name, timeout=60)


@pytest.mark.nightly
@pytest.mark.parametrize("by", [nightly("srun "), ""])
def test_no_record_stays_of_what_is_killed_with_its_step(site: Site, by: str) -> None:
    """A `run` that is killed with all that is in its step deletes nothing; `list` has it done."""
    name = f"{site.base.name}-kept"
    kept = called(site, "run", "--keep", "--name", name, str(site.rootfs), "true")
    script = "exec >>/said/0; echo up; exec sleep 600"
    run = called(site, "run", str(site.rootfs), "sh", "-c", script)
    both = f"{shlex.join(kept)}; {shlex.join(run)}"
    with begun(site, "sh", "-c", both, by=by) as told:
        assert len(ids(site)) == 2
        told.cancel()
        wait_until("the job", lambda: not cluster.slurm("squeue", "-h", "-j", told.job), 40)
    site.must("list")
    wait_until("the other one is gone", lambda: ids(site) == [name], 30)
    site.must("delete", name, timeout=60)


def ids(site: Site) -> list[str]:
    """The containers of a site."""
    return site.must("list", "--quiet").split()
