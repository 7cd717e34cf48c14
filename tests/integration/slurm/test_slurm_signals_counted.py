"""Signals of Slurm's by numbers: each comes, once, and SIGTERM before the end.

They go to a container, one of several tasks, a pod of two, and one of podman's. Nightly each
signal comes a hundred times to each kind, and each end a hundred times.
"""

import json
import os
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Collector, Life
from tests.harness.nightly import nightly, often
from tests.harness.podman import RUN, Podman, podman_of
from tests.harness.site import Site, scrun_binary
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise signals of Slurm's")

ROUNDS = often(2, 100)
"""How often each signal is sent."""
ENDS = often(4, 100)
"""How many containers, and pods, are ended in each way."""
OTHERS = often(2, 100)
"""How many pods, and containers of podman in scripts, are requeued."""
AT_ONCE = 12
OTHERS_AT_ONCE = 10
SEVERAL = {"shim": 4, "container": 2}
"""Tasks of who has several: srun of 22.05 runs one container of a job on each of the two nodes."""

NAMES = ("USR1", "USR2", "HUP", "INT")
_WAITS = """
sleep 600 & child=$!
echo up
until [ "$told" ]; do wait $child; done
"""
RUNS = "".join(f"trap 'echo {name}' {name}; " for name in NAMES) + _WAITS
SAVES = f"""
trap 'echo TERM; told=1' TERM
{_WAITS}
sleep 0.5 & child=$!
while kill -0 $child 2>/dev/null; do wait $child; done
echo saved
exit 3
"""
_PREEMPTING = """
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP
"""

launches = pytest.mark.parametrize("launch", ["shim", nightly("container")])


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """One that preempts, and gives programs more time than a loaded machine takes."""

    def change(text: str | None) -> str:
        return (text or "").replace("KillWait=2\n", "KillWait=20\n") + _PREEMPTING

    with cluster.reconfigured(change):
        yield


class Subject:
    """Who gets signals: one container, of one or several tasks."""

    def __init__(self, kind: str, life: Life, tasks: int = 1) -> None:
        """Take a container that is being created."""
        self.kind, self.life, self.tasks = kind, life, tasks

    def begin(self) -> None:
        """Start it."""
        self.life.created(100).start(100)

    @property
    def job(self) -> str:
        return self.life.job_id

    @property
    def text(self) -> str:
        """What it has said so far."""
        assert self.life.stdout
        return self.life.stdout.so_far.decode()

    def end(self) -> tuple[int, str]:
        status = self.life.wait(100)
        self.life.output(60)
        reason = self.life.state()["annotations"]["org.scrun.reason"]
        assert self.text or self.life.output(60) is not None
        self.life.delete(60)
        return status, str(reason)


class OfPodman(Subject):
    """A container of podman's, in the foreground."""

    def __init__(self, podman: Podman, script: str) -> None:
        self.kind, self.tasks = "podman", 1
        self._podman = podman
        self._name = f"counted-{podman.environment['COUNTED']}"
        podman.environment["COUNTED"] = str(int(podman.environment["COUNTED"]) + 1)
        self._process = podman.popen(
            *RUN, "--name", self._name, "busybox", "sh", "-c", script,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdout
        with self._process.stdout as stdout:
            self._output = Collector(os.dup(stdout.fileno()))

    def begin(self) -> None:
        """It begins by itself."""

    @property
    def _container(self) -> str:
        return self._podman.must("inspect", "--format", "{{.Id}}", self._name).strip()

    @property
    def _state(self) -> dict[str, str]:
        root = self._podman.environment["XDG_RUNTIME_DIR"] + "/scrun"
        state = self._podman.site.user.prefix
        asked = [*state, scrun_binary(), "--root", root, "state", self._container]
        done = subprocess.run(asked, env=self._podman.environment, capture_output=True, check=True)
        annotations: dict[str, str] = json.loads(done.stdout)["annotations"]
        return annotations

    @property
    def job(self) -> str:
        return self._state["org.scrun.job_id"]

    @property
    def text(self) -> str:
        return self._output.so_far.decode()

    def end(self) -> tuple[int, str]:
        """See `Subject`; podman has removed what tells the reason, which the status has, too."""
        status = self._process.wait(100)
        self._output.all(60)
        self._podman.must("rm", "--force", self._name)
        return status, ""


class Subjects:
    """Makes them: of each kind in turn."""

    def __init__(self, site: Site, podman: Podman, script: str, several: int) -> None:
        self._several = several
        self.site, self._podman, self._script = site, podman, script
        self._pods = 0

    def make(self, count: int, first: int = 0) -> list[Subject]:
        """Make so many, of which a pod is one, and wait until they run."""
        made = [one for number in range(first, first + count) for one in self._one(number % 4)]
        for one in made:
            one.begin()
        for one in made:
            wait_until(f"{one.kind} is up", lambda one=one: one.text.count("up") == one.tasks, 100)  # type: ignore[misc]
        return made

    def _one(self, kind: int) -> list[Subject]:
        if kind == 0:
            return [Subject("one", self.site.shell(self._script))]
        if kind == 1:
            tasks = self._several
            environment = {"SCRUN_NTASKS": str(tasks), "SCRUN_JOB_NUM_NODES": "2"}
            life = self.site.shell(self._script, environment=environment)
            return [Subject("several", life, tasks)]
        if kind == 2:
            self._pods += 1
            config = self.site.config("sh", "-c", self._script)
            config["annotations"] = {"org.scrun.pod": f"pod{self._pods}"}
            return [Subject("pod", self.site.life(config=config)) for _ in range(2)]
        return [OfPodman(self._podman, self._script)]


@contextmanager
def subjects(make_site: MakeSite, launch: str, script: str) -> Iterator[Subjects]:
    """Have what makes them."""
    settings = f'[slurm]\nlaunch = "{launch}"\n'
    site = make_site("slurm-user", settings=f"idle_timeout = 20\n{settings}")
    with podman_of(site.user, settings=f'launch = "{launch}"\n') as podman:
        podman.environment["COUNTED"] = "0"
        yield Subjects(site, podman, script, SEVERAL[launch])


@pytest.mark.parametrize("launch", ["shim", nightly("container")])
def test_each_comes_once(make_site: MakeSite, launch: str) -> None:
    with subjects(make_site, launch, RUNS) as made:
        all_of_them = made.make(4)
        jobs = sorted({one.job for one in all_of_them})
        for number in range(1, ROUNDS + 1):
            for name in NAMES:
                cluster.slurm("scancel", f"--signal={name}", *jobs, timeout=60)
                for one in all_of_them:
                    wait_until(
                        f"{one.kind}: {name}, time {number}",
                        lambda one=one, name=name: (  # type: ignore[misc]
                            Counter(one.text.split())[name] == number * one.tasks  # noqa: B023
                        ),
                        60,
                    )
        cluster.slurm("scancel", *jobs, timeout=60)
        for one in all_of_them:
            one.end()
            words = one.text.split()
            if one.tasks == 1:
                assert words == ["up", *NAMES * ROUNDS]
            assert Counter(words) == {"up": one.tasks, **dict.fromkeys(NAMES, ROUNDS * one.tasks)}


def cancel(jobs: Sequence[str]) -> None:
    cluster.slurm("scancel", *jobs, timeout=60)


def limit(jobs: Sequence[str]) -> None:
    """Have the time limit of jobs come; slurmctld looks every half minute."""
    for job in jobs:
        cluster.slurm("scontrol", "update", f"JobId={job}", "EndTime=now+1seconds", timeout=60)


@contextmanager
def urgent(site: Site) -> Iterator[None]:
    """A job that needs all nodes, and counts more."""
    words = ("--parsable", "--exclusive", "-N2", "--partition=urgent", "--output=/dev/null")
    who = (f"--uid={site.user.uid}", "--chdir=/", "--wrap", "exec sleep 600")
    job = cluster.slurm("sbatch", *words, *who).strip()
    try:
        yield
    finally:
        cluster.slurm("scancel", job)
        wait_until("it is gone", lambda: not cluster.slurm("squeue", "-h", "-p", "urgent"), 60)


def check(subject: Subject, status: int, reason: str, *, twice: bool = False) -> str:
    """Return what is wrong about an end, or ""."""
    ended, why = subject.end()
    said = Counter(subject.text.split())
    each = subject.tasks
    terms = range(each, each * 2 + 1) if twice else (each,)
    right = said["up"] == said["saved"] == each and said["TERM"] in terms
    if right and ended == status and why in (reason, ""):
        return ""
    return f"{subject.kind}: {ended} {why} {dict(said)}"


ENDINGS = {"cancel": (122, "cancelled"), "limit": (124, "time-limit"), "preempt": (3, "exited")}


@launches
@pytest.mark.parametrize("way", ["cancel", nightly("limit"), nightly("preempt")])
def test_term_comes_before_the_end(make_site: MakeSite, launch: str, way: str) -> None:
    status, reason = ENDINGS[way]
    wrong: list[str] = []
    with subjects(make_site, launch, SAVES) as made, ExitStack() as stack:
        if way == "preempt":
            grace = cluster.changed("PartitionName=test", "GraceTime=60", back="GraceTime=0")
            stack.enter_context(grace)
        for first in range(0, ENDS, AT_ONCE):
            some = made.make(min(AT_ONCE, ENDS - first), first)
            jobs = sorted({one.job for one in some})
            with ExitStack() as ending:
                if way == "preempt":
                    ending.enter_context(urgent(made.site))
                else:
                    (cancel if way == "cancel" else limit)(jobs)
                # srun --container gets it twice at a time limit, as srun does
                twice = way == "limit" and launch == "container"
                wrong += filter(None, (check(one, status, reason, twice=twice) for one in some))
    assert not wrong, f"{len(wrong)} of {ENDS}: {wrong}"


def requeue(jobs: Sequence[str]) -> None:
    cluster.slurm("scontrol", "requeue", ",".join(jobs), timeout=60)


@pytest.mark.nightly
@launches
def test_term_comes_before_a_requeue(make_site: MakeSite, launch: str) -> None:
    """A batch script runs the container, of one task or of several."""
    scripts_are_told(make_site, launch, requeue)


@launches
@pytest.mark.parametrize("way", [nightly(cancel), nightly(requeue), nightly(limit)])
def test_a_script_that_becomes_the_container(
    make_site: MakeSite, launch: str, way: Callable[[Sequence[str]], None]
) -> None:
    """Slurm tells it, too, and it may take as long as Slurm gives."""
    twice = way is limit and launch == "container"  # as srun does
    scripts_are_told(make_site, launch, way, "exec ", seconds=7, twice=twice)


def scripts_are_told(
    make_site: MakeSite,
    launch: str,
    way: Callable[[Sequence[str]], None],
    calls: str = "",
    seconds: float = 0.5,
    *,
    twice: bool = False,
) -> None:
    """Have batch scripts run containers, end their jobs, and see that each is told once."""
    tasks = (1, SEVERAL[launch])
    settings = f'idle_timeout = 20\n[slurm]\nlaunch = "{launch}"\n'
    site = make_site("slurm-user", settings=settings)
    place = Path(site.base) / "said"
    place.mkdir()
    place.chmod(0o777)
    script = SAVES.replace("sleep 0.5", f"sleep {seconds}")
    wrong: list[str] = []
    for first in range(0, ENDS, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, ENDS))
        jobs = {
            number: _batch(site, place, number, tasks[number % 2], calls, script)
            for number in numbers
        }
        try:
            for number in numbers:
                wait_until(
                    f"{number} is up",
                    lambda number=number: _said(place, number)["up"] == tasks[number % 2],  # type: ignore[misc]
                    100,
                )
            way([*jobs.values()])
            for number in numbers:
                each = tasks[number % 2]
                with suppress(AssertionError):
                    wait_until(
                        f"{number} has saved its state",
                        lambda number=number, each=each: _said(place, number)["saved"] == each,  # type: ignore[misc]
                        90,
                    )
                said = _said(place, number)
                terms = range(each, each * 2 + 1) if twice else (each,)
                if not (said["up"] == said["saved"] == each and said["TERM"] in terms):
                    wrong.append(f"{number}: {dict(said)}")
        finally:
            cluster.slurm("scancel", *jobs.values(), timeout=60)
            queue = ",".join(jobs.values())
            wait_until("jobs", lambda queue=queue: not cluster.slurm("squeue", "-hj", queue), 90)  # type: ignore[misc]
            for number in numbers:
                site.must("delete", "--force", f"batch{number}", timeout=60)
    assert not wrong, f"{len(wrong)} of {ENDS}: {wrong}"


@pytest.mark.timeout(1500 if OTHERS > OTHERS_AT_ONCE else 120)
@pytest.mark.parametrize("launch", ["shim", nightly("container")])
@pytest.mark.parametrize("kind", [nightly("pod"), nightly("podman")])
def test_term_comes_before_a_requeue_of(make_site: MakeSite, launch: str, kind: str) -> None:
    """A batch script runs a pod of two, or podman."""
    settings = f'idle_timeout = 20\n[slurm]\nlaunch = "{launch}"\n'
    site = make_site("slurm-user", settings=settings)
    place = Path(site.base) / "said"
    place.mkdir()
    place.chmod(0o777)
    members = 2 if kind == "pod" else 1
    counted = {"up": members, "TERM": members, "saved": members}
    with podman_of(site.user, settings=f'launch = "{launch}"\n') as podman:
        for first in range(0, OTHERS, OTHERS_AT_ONCE):
            numbers = range(first, min(first + OTHERS_AT_ONCE, OTHERS))
            jobs = []
            for number in numbers:
                script = f"exec >>/said/{number}\n{SAVES}"
                if kind == "pod":
                    lines = _pod(site, place, number, script)
                else:
                    words = [*podman.command, *RUN, "--volume", f"{place}:/said", "busybox"]
                    own = {"XDG_RUNTIME_DIR", "TMPDIR"} & {*podman.environment}
                    env = " ".join(f"{name}={podman.environment[name]}" for name in sorted(own))
                    lines = f"{env} exec {shlex.join([*words, 'sh', '-c', script])}\n"
                jobs.append(_submitted(site, place / f"job{number}", lines, members))
            try:
                for number in numbers:
                    up = lambda number=number: _said(place, number)["up"] == members  # noqa: E731
                    wait_until(f"{number} is up", up, 100)
                requeue(jobs)
                for number in numbers:
                    saved = lambda number=number: _said(place, number)["saved"] == members  # noqa: E731
                    wait_until(f"{number} has saved its state", saved, 60)
                    assert _said(place, number) == counted
            finally:
                cluster.slurm("scancel", *jobs, timeout=60)
                queue = ",".join(jobs)
                over = lambda queue=queue: not cluster.slurm("squeue", "-hj", queue)  # noqa: E731
                wait_until("jobs", over, 90)
                for container in site.must("list", "--quiet").split():
                    site.must("delete", "--force", container, timeout=60)


def _pod(site: Site, place: Path, number: int, script: str) -> str:
    """Return what runs two containers that share what they have."""
    lines = ""
    for member in ("a", "b"):
        config = _config(site, place, script)
        config["annotations"] = {"org.scrun.pod": f"pod{number}"}
        bundle = site.bundle(config)
        command = f"{scrun_binary()} --root {site.root} run --bundle {bundle}"
        lines += f"{command} pod{number}{member} &\n"
    return f"{lines}wait\n"


def _said(place: Path, number: int) -> Counter[str]:
    log = place / str(number)
    return Counter(log.read_text().split() if log.exists() else ())


def _batch(site: Site, place: Path, number: int, tasks: int, calls: str, script: str) -> str:
    bundle = site.bundle(_config(site, place, f"exec >>/said/{number}\n{script}"))
    run = f"{scrun_binary()} --root {site.root} run --bundle {bundle} batch{number}"
    lines = f"export SCRUN_NTASKS={tasks}\n{calls}{run}\n"
    return _submitted(site, place / f"job{number}", lines, tasks)


def _config(site: Site, place: Path, script: str) -> dict[str, Any]:
    config = site.config("sh", "-c", script)
    config["mounts"].append(
        {"destination": "/said", "type": "bind", "source": str(place), "options": ["rbind"]}
    )
    return config


def _submitted(site: Site, job: Path, lines: str, tasks: int) -> str:
    """Submit a script; return its job's number."""
    job.write_text(f"#!/bin/sh\nexport SCRUN_CONFIG={site.environment['SCRUN_CONFIG']}\n{lines}")
    shape = (f"--ntasks={tasks}", f"--nodes={min(tasks, 2)}")
    words = ("--parsable", "--requeue", *shape, "--chdir=/", "--output=/dev/null", str(job))
    return cluster.slurm(*site.user.prefix, "sbatch", *words).strip()
