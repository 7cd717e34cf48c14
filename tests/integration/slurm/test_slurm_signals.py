"""What Slurm says by a signal reaches the programs: on request, before a limit, before the end."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Collector, Life
from tests.harness.nightly import nightly
from tests.harness.site import Site, scrun_binary
from tests.harness.wait import wait_until
from tests.integration.slurm.test_shim_bad_cases import with_srun

pytestmark = [pytest.mark.covers("promise signals of Slurm's"), pytest.mark.shares_sites]

NAMES = ("USR1", "USR2", "HUP", "INT", "TERM")
_WAITS = "echo up; while :; do sleep 0.05; done"
RUNS = "".join(f"trap 'echo {name}' {name}; " for name in NAMES) + _WAITS
SAVES = f"trap 'echo saving; sleep 1; echo saved; exit 3' TERM; {_WAITS}"
COUNTS = """
told=''
trap 'echo TERM >>/saved/log; told=1' TERM
sleep 600 & child=$!
echo up >>/saved/log
until [ "$told" ]; do wait $child; done
sleep 2 & child=$!
while kill -0 $child 2>/dev/null; do wait $child; done
echo saved >>/saved/log
exit 3
"""
"""A program that is told to end, and saves its state for two seconds.

It waits for nothing but signals, so that none of two is lost that come close together.
"""

TWO = {"SCRUN_NTASKS": "2", "SCRUN_JOB_NUM_NODES": "2"}
launches = pytest.mark.parametrize("launch", ["shim", "container"])
shims = pytest.mark.parametrize("launch", ["shim", nightly("container")])


def site_of(make_site: MakeSite, launch: str, more: str = "") -> Site:
    settings = f'idle_timeout = 20\n[slurm]\nlaunch = "{launch}"\n{more}'
    return make_site("slurm-user", settings=settings)


def begun(site: Site, script: str, times: int = 1, **how: Any) -> Life:
    """A container of a script that runs."""
    args = () if "config" in how else ("sh", "-c", script)
    return site.life(*args, **how).created(60).start(60).says("up", 30, times=times)


def told(life: Life, *names: str, times: int = 1) -> None:
    """Send signals as Slurm does; each comes once, in order."""
    for name in names:
        cluster.slurm(*life.site.user.prefix, "scancel", f"--signal={name}", life.job_id)
        life.says(name, 20, times=times)


def ended(life: Life, status: int, reason: str) -> str:
    """Wait for its end, and check what is told of it; return its output."""
    assert life.wait(60) == status
    assert life.state()["annotations"]["org.scrun.reason"] == reason
    output = life.output()
    life.delete(60)
    return output


@launches
def test_on_request(make_site: MakeSite, launch: str) -> None:
    life = begun(site_of(make_site, launch), RUNS)
    told(life, *NAMES[:4])
    life.kill("KILL")
    assert ended(life, 137, "exited").split() == ["up", *NAMES[:4]]


@shims
def test_several_tasks(make_site: MakeSite, launch: str) -> None:
    site = site_of(make_site, launch)
    life = begun(site, RUNS, 2, environment=TWO)
    told(life, "USR1", "INT", times=2)
    life.kill("KILL")
    assert sorted(ended(life, 137, "exited").split()) == sorted(["up", "USR1", "INT"] * 2)


def test_a_pod(make_site: MakeSite) -> None:
    site = site_of(make_site, "shim")
    config = site.config("sh", "-c", RUNS)
    config["annotations"] = {"org.scrun.pod": "told"}
    lives = [begun(site, RUNS, config=config) for _ in range(2)]
    cluster.slurm("scancel", "--signal=USR2", lives[0].job_id)
    for life in lives:
        life.says("USR2", 20)
        life.kill("KILL")
        assert ended(life, 137, "exited").split() == ["up", "USR2"]


def test_before_its_start(make_site: MakeSite) -> None:
    life = site_of(make_site, "shim").shell(RUNS).created(60)
    cluster.slurm("scancel", "--signal=USR1", life.job_id)
    time.sleep(1)
    life.start().says("USR1", 20)
    life.kill("KILL")
    assert ended(life, 137, "exited").split() == ["up", "USR1"]


def test_a_job_that_waits_for_its_next_container(make_site: MakeSite) -> None:
    site = site_of(make_site, "shim", "linger = 60\n")
    first = site.life("true").created().start()
    job = first.job_id
    first.ends()
    for name in NAMES[:4]:
        cluster.slurm("scancel", f"--signal={name}", job)
    time.sleep(1)
    life = begun(site, RUNS)
    assert life.job_id == job
    life.kill("KILL")
    assert ended(life, 137, "exited").split() == ["up"]
    cluster.slurm("scancel", job)


def test_before_the_time_limit(make_site: MakeSite) -> None:
    environment = {"SCRUN_TIMELIMIT": "1", "SCRUN_SIGNAL": "USR1@50"}
    life = begun(site_of(make_site, "shim"), RUNS, environment=environment)
    life.says("USR1", 60)
    life.kill("KILL")
    assert ended(life, 137, "exited").split() == ["up", "USR1"]


@launches
@pytest.mark.parametrize("tasks", [1, nightly(2)])
def test_cancelled(make_site: MakeSite, launch: str, tasks: int) -> None:
    site = site_of(make_site, launch)
    life = begun(site, SAVES, tasks, environment=TWO if tasks == 2 else {})
    cluster.slurm("scancel", life.job_id)
    output = ended(life, 122, "cancelled").split()
    assert sorted(output) == sorted(["up", "saving", "saved"] * tasks)


def test_at_the_time_limit(make_site: MakeSite) -> None:
    life = begun(site_of(make_site, "shim"), SAVES)
    cluster.slurm("scontrol", "update", f"JobId={life.job_id}", "EndTime=now+2seconds")
    assert ended(life, 124, "time-limit").split() == ["up", "saving", "saved"]


def test_what_does_not_care_is_ended_at_once(make_site: MakeSite) -> None:
    life = begun(site_of(make_site, "shim"), _WAITS)
    began = time.monotonic()
    cluster.slurm("scancel", life.job_id)
    ended(life, 122, "cancelled")
    assert time.monotonic() - began < 4  # KillWait is at least 5 s for slurmd


@pytest.mark.parametrize("launch", ["shim", nightly("container")])
@pytest.mark.parametrize(
    ("way", "calls"),
    [
        nightly(("scancel",), ""),
        (("scancel",), "exec "),
        (("scontrol", "requeue"), "srun "),
        nightly(("scancel",), "srun "),
        nightly(("scontrol", "requeue"), ""),
        nightly(("scontrol", "requeue"), "exec "),
    ],
)
def test_a_batch_script(
    make_site: MakeSite, way: tuple[str, ...], launch: str, calls: str
) -> None:
    """slurmd ends the script as well, and all that it has started: nothing is told twice."""
    site = site_of(make_site, launch)
    place = Path(site.base) / "saved"
    place.mkdir()
    place.chmod(0o777)
    config = site.config("sh", "-c", COUNTS)
    config["mounts"].append(
        {"destination": "/saved", "type": "bind", "source": str(place), "options": ["rbind"]}
    )
    bundle = site.bundle(config)

    def said() -> list[str]:
        return (place / "log").read_text().split() if (place / "log").exists() else []

    job = place / "job"
    job.write_text(
        f"#!/bin/sh\nexport SCRUN_CONFIG={site.environment['SCRUN_CONFIG']}\n"
        f"{calls}{scrun_binary()} --root {site.root} run --bundle {bundle} batch\n"
    )
    number = cluster.slurm(
        *site.user.prefix, "sbatch", "--parsable", "--requeue", "--chdir=/", "--output=/dev/null",
        str(job),
    ).strip()  # fmt: skip
    try:
        wait_until("it runs", lambda: said() == ["up"], 40)
        cluster.slurm(*way, number)
        wait_until("it has saved its state", lambda: "saved" in said(), 30)
        assert said() == ["up", "TERM", "saved"]
    finally:
        cluster.slurm("scancel", number)
        wait_until("the job", lambda: not cluster.slurm("squeue", "-h", "-j", number), 30)
        site.must("delete", "--force", "batch", timeout=60)


def test_before_the_shim_can_take_it(make_site: MakeSite) -> None:
    """It ends the interpreter that becomes the shim: a second step has both."""
    site = make_site("slurm-user", settings='idle_timeout = 20\n[slurm]\nlaunch = "shim"\n')
    once = site.base / "l" / "once"
    once.touch()
    once.chmod(0o666)
    once.parent.chmod(0o777)
    srun = shutil.which("srun")
    with_srun(
        site,
        "#!/bin/bash\n"
        f'[[ $1 != --version && ! -s {once} ]] || exec {srun} "$@"\n'
        f"echo once >{once}\n"
        "words=()\n"
        'for word; do [[ $word != -- ]] || break; words+=("$word"); done\n'
        f"exec {srun} \"${{words[@]}}\" -- /bin/sh -c 'kill -USR1 $$'\n",
    )
    life = begun(site, RUNS).says("USR1", 20)
    assert "before the shim could handle it: a second step" in site.must(
        "logs", "--messages", life.id
    )
    life.kill("KILL")
    assert ended(life, 137, "exited").split() == ["up", "USR1"]


@shims
def test_programs_of_exec(make_site: MakeSite, launch: str) -> None:
    """As the tasks of a step of their own: each gets each once, in order."""
    life = begun(site_of(make_site, launch), RUNS)
    names = ["up"]
    with program(life, RUNS) as output:
        for name in NAMES[:4]:
            told(life, name)
            names.append(name)
            wait_until(f"it says {names}", lambda: output().split() == names, 20)
        life.kill("KILL")
    assert output().split() == names
    assert ended(life, 137, "exited").split() == names


@shims
def test_a_program_of_exec_saves_its_state(make_site: MakeSite, launch: str) -> None:
    """Though its container does not care, which is ended at the end of that."""
    life = begun(site_of(make_site, launch), "trap '' TERM; echo up; exec sleep 600")
    with program(life, SAVES) as output:
        cluster.slurm("scancel", life.job_id)
        wait_until("it has saved", lambda: output().split() == ["up", "saving", "saved"], 20)
    assert ended(life, 122, "cancelled") == "up\n"


@contextmanager
def program(life: Life, script: str) -> Iterator[Callable[[], str]]:
    """Run a program in a container that says `up`; yield what returns its output so far."""
    process = life.site.popen("exec", life.id, "sh", "-c", script)
    assert process.stdin
    assert process.stdout
    assert process.stderr
    with process.stdin, process.stdout as stdout, process.stderr:
        output = Collector(os.dup(stdout.fileno()))
    try:
        wait_until("it is up", lambda: output.so_far == b"up\n", 30)
        yield lambda: output.so_far.decode()
    finally:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


class Staging:
    """Has containers of a site wait while they are staged."""

    def __init__(self, site: Site) -> None:
        """Stage by a script from now on, which waits for `go_on`."""
        self._place = site.base / "l" / "staging"
        self._place.mkdir()
        os.mkfifo(self._place / "go")
        for path in (self._place, self._place / "go"):
            site.user.give(path)
        script = site.base / "waits.lua"
        script.write_text(
            "function slurm_scrun_stage_in()\n"
            f"slurm.allocator_command('echo >{self._place}/begun; read x <{self._place}/go')\n"
            "return slurm.SUCCESS\nend\n"
            "function slurm_scrun_stage_out() return slurm.SUCCESS end\n"
        )
        with open(site.base / "scrun.toml", "a") as settings:
            settings.write(f'[lua]\nscript = "{script}"\n')

    def begins(self) -> None:
        wait_until("it is staged", (self._place / "begun").exists, 30)
        (self._place / "begun").unlink()

    def go_on(self) -> None:
        (self._place / "go").write_text("\n")


def in_any_order(output: str) -> list[str]:
    """What was told; of two that are pending the kernel delivers the lower number first."""
    return output.replace("USR2\nUSR1\n", "USR1\nUSR2\n").split()


def test_while_it_is_staged_in_a_job_that_waited(make_site: MakeSite) -> None:
    site = site_of(make_site, "shim", "linger = 60\n")
    staging = Staging(site)
    first = site.life("true")
    staging.begins()
    staging.go_on()
    job = first.created(60).start(60).job_id
    first.ends()
    cluster.slurm("scancel", "--signal=HUP", job)
    life = site.shell(RUNS)
    staging.begins()
    assert life.job_id == job
    for name in ("USR2", "USR1", "USR2"):
        cluster.slurm("scancel", f"--signal={name}", job)
        time.sleep(0.3)
    staging.go_on()
    life.created(60).start(60).says("USR1", 30).says("USR2", 30)
    told(life, "INT")
    life.kill("KILL")
    assert in_any_order(ended(life, 137, "exited")) == ["up", "USR1", "USR2", "INT"]
    cluster.slurm("scancel", job)


def test_while_it_is_staged_in_a_pod(make_site: MakeSite) -> None:
    site = site_of(make_site, "shim")
    staging = Staging(site)
    config = site.config("sh", "-c", RUNS)
    config["annotations"] = {"org.scrun.pod": "told"}
    first = site.life(config=config)
    staging.begins()
    staging.go_on()
    first.created(60).start(60).says("up", 30)
    told(first, "HUP")
    second = site.life(config=config)
    staging.begins()
    told(first, "USR2", "USR1")
    staging.go_on()
    second.created(60).start(60).says("USR1", 30).says("USR2", 30)
    for life, names in ((first, ["HUP"]), (second, [])):
        life.kill("KILL")
        assert in_any_order(ended(life, 137, "exited")) == ["up", *names, "USR1", "USR2"]
