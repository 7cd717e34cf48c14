"""An oci.conf whose commands a shim runs on the node, with real runtimes.

What each key and pattern means is tested with the embedded engine (test_oci_conf): the same code
decides.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests import CHECKOUT
from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import (
    COUNT,
    UNTIL_TOLD,
    adoptions,
    end,
    kill_now_and_then,
    kill_supervisor,
    numbers,
    output,
)
from tests.harness.nightly import nightly
from tests.harness.processes import shims_of, signal_quietly
from tests.harness.site import Site, several_lives
from tests.harness.wait import wait_until, wait_while
from tests.integration.slurm.test_ranks import unreached

pytestmark = pytest.mark.shares_sites

EXAMPLES = CHECKOUT / "docs" / "examples" / "oci.conf"
SHIM = 'idle_timeout = 20\n[slurm]\nlaunch = "shim"\n'
MakeShimSite = Callable[..., Site]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that users can enter and write to."""
    path = Path(tempfile.mkdtemp(prefix="oci-", dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make(make_site: MakeSite) -> Iterator[MakeShimSite]:
    """Makes a place whose containers are made by a shim, with an oci.conf on the nodes."""
    with ExitStack() as stack:

        def made(text: str, place: str = "slurm-user", *, here: bool = True) -> Site:
            stack.enter_context(cluster.with_oci_conf(text))
            site = make_site(place, settings=SHIM, site_commands=True)
            if not here:  # the submit host has none
                conf = site.base / "etc" / "slurm.conf"
                conf.parent.mkdir()
                conf.write_text(Path(cluster.slurm_conf()).read_text())
                site.environment["SLURM_CONF"] = str(conf)
            return site

        yield made


def logging(shared: Path, way: str) -> str:
    """An oci.conf with crun behind a wrapper that writes down how it is called."""
    wrapper = shared / "runtime"
    calls = shared / "calls"
    wrapper.write_text(
        f'#!/bin/sh\necho "$*" >>{calls}\nexec crun --cgroup-manager=disabled "$@"\n'
    )
    wrapper.chmod(0o755)
    calls.touch()
    calls.chmod(0o666)
    text = (EXAMPLES / f"crun-{way}.conf").read_text()
    return text.replace(
        "crun --rootless=true --root=/run/user/%U/", f"{wrapper} --root={shared}/s"
    )


def called(shared: Path) -> list[str]:
    """What the wrapper was called for, one after the other."""
    calls = (shared / "calls").read_text().splitlines()
    return [line.split()[1] for line in calls]


@pytest.mark.covers("oci.conf RunTimeCreate", "oci.conf RunTimeStart", "oci.conf RunTimeQuery")
@pytest.mark.parametrize("place", ["slurm-user", "slurm-root"])
def test_the_order_of_create_and_start(make: MakeShimSite, shared: Path, place: str) -> None:
    """oci.conf(5): each command in its turn, `create` within `scrun create`."""
    site = make(logging(shared, "create"), place)
    life = site.shell("trap 'exit 9' USR1; echo up; while :; do sleep 0.05; done").created()
    assert called(shared) == ["create", "state"]
    life.start().says("up")
    assert called(shared) == ["create", "state", "start"]
    said = f"with the commands of {cluster.oci_conf()}"
    assert said in site.must("logs", "--messages", life.id)
    assert life.state()["annotations"]["org.scrun.launch"] == "shim"
    assert site.must("exec", life.id, "echo", "inside") == "inside\n"
    assert "exec" in called(shared)
    assert "sleep" in site.must("ps", life.id)
    site.must("pause", life.id)
    assert life.status == "paused"
    site.must("resume", life.id)
    life.kill("USR1")
    life.ends(9)
    assert called(shared)[-2:] == ["kill", "delete"]
    site.settle()


@pytest.mark.covers("oci.conf RunTimeRun", "oci.conf RunTimeKill", "oci.conf RunTimeDelete")
def test_the_order_of_run(make: MakeShimSite, shared: Path) -> None:
    site = make(logging(shared, "run"))
    life = site.shell("echo up; read line; exit 3", stdin="pipe").created()
    assert called(shared) == []
    life.start().says("up")
    assert called(shared) == ["run"]
    life.close_stdin()
    life.ends(3)
    assert called(shared) == ["run", "delete"]
    killed = site.life("sleep", "600").created().start()
    killed.kill("KILL")
    killed.ends(137)
    assert called(shared)[2:] == ["run", "kill", "delete"]
    site.settle()


@pytest.mark.parametrize("name", [nightly("runc-create"), "crun-run"])
def test_the_examples_of_the_guide(make: MakeShimSite, name: str) -> None:
    """Containers guide: as they are, without a step by slurmstepd."""
    several_lives(make((EXAMPLES / f"{name}.conf").read_text()))


def test_only_the_nodes_have_one(make: MakeShimSite, shared: Path) -> None:
    site = make(logging(shared, "run"), here=False)
    life = site.life("true").created().start()
    life.ends()
    assert called(shared) == ["run", "delete"]


def test_a_wrong_one_of_the_nodes(make: MakeShimSite) -> None:
    site = make("RunTimeRun=x\nFancy=1\n", here=False)
    said = site.life("true").refused()
    assert f"{cluster.oci_conf()}:2: Fancy: unknown key" in said
    site.settle()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("create", "could not be created: "),
        ("start", "could not be started: "),
        ("delete", "RunTimeDelete: "),
    ],
)
def test_each_command_fails(make: MakeShimSite, shared: Path, command: str, said: str) -> None:
    """Guide: a job fails if the runtime does; in the runtime's words."""
    site = make(logging(shared, "create").replace(f" {command} ", " no-such-command "))
    life = site.life("true")
    if command == "create":
        assert said in life.refused()
        return
    life.created()
    life.run("start")
    assert (life.wait() != 0) is (command == "start")
    if command == "start":
        assert said in life.state()["annotations"]["org.scrun.message"]
    else:
        wait_until(said, lambda: said in site.must("logs", "--messages", life.id))
    life.delete()


PARAMETERS = """\
ContainerPath={path}/%u
MountSpoolDir=/mnt/step-%s
CreateEnvFile=null
DisableHooks=prestart
EnvExclude="^(SECRET|SLURM_CONF)="
RunTimeEnvExclude="^SLURM_JOB_NAME="
RunTimeQuery="crun --cgroup-manager=disabled --root={path}/state state %j.%s.%t"
RunTimeKill="crun --root={path}/state kill %j.%s.%t TERM"
RunTimeDelete="crun --root={path}/state delete --force %j.%s.%t"
RunTimeRun="env >{path}/env; echo '%Z' '%b' %r %e %m %n %u %U %t >{path}/words; exec \
crun --cgroup-manager=disabled --root={path}/state run -b %b %j.%s.%t"
"""


@pytest.mark.covers("oci.conf ContainerPath", "oci.conf CreateEnvFile", "oci.conf DisableHooks")
@pytest.mark.covers("oci.conf EnvExclude", "oci.conf MountSpoolDir")
@pytest.mark.covers("oci.conf RunTimeEnvExclude")
def test_parameters(make: MakeShimSite, shared: Path) -> None:
    """oci.conf(5), each parameter: what the container and the commands see on the node."""
    site = make(PARAMETERS.format(path=shared))
    (site.rootfs / "mnt").mkdir()
    site.user.give(site.rootfs / "mnt")
    script = "tr '\\0' '\\n' </mnt/step-0/task-0/environment; echo; env"
    config = site.config("sh", "-c", script)
    config["process"]["env"] += ["SECRET=of config.json", "OPEN=yes"]
    life = site.life(config=config).created().start()
    assert life.wait() == 0, life.errors()
    file, _, variables = life.output().partition("\n\n")
    for text in (file, variables):
        lines = text.splitlines()
        assert {"OPEN=yes", "SLURM_STEP_ID=0"} <= set(lines)
        assert not any(line.startswith(("SECRET=", "SLURM_CONF=")) for line in lines)
    names = {line.partition("=")[0] for line in (shared / "env").read_text().splitlines()}
    assert "SLURM_JOB_ID" in names
    assert "SLURM_JOB_NAME" not in names
    words = (shared / "words").read_text().split()
    directory, bundle, rootfs, environment, step, node, user, uid, task = words
    assert (directory, user, uid) == (str(site.base), site.user.name, str(site.user.uid))
    assert os.path.samefile(rootfs, site.rootfs)
    assert node in ("node1", "node2")
    assert step.startswith(f"{shared}/{site.user.name}/oci-job")
    assert (bundle, environment) == (f"{step}/task-0", f"{step}/task-0/environment")
    assert task == "0"
    life.delete()
    assert not os.path.exists(step)
    site.settle()


def test_a_place_that_cannot_be_made(make: MakeShimSite, shared: Path) -> None:
    """oci.conf(5): ContainerPath; slurmstepd makes it as root, a shim is the user's."""
    (shared / "roots").mkdir(mode=0o700)
    site = make(f"ContainerPath={shared}/roots/x\n" + logging(shared, "run"))
    said = site.life("true").refused()
    assert f"{shared}/roots" in said
    assert "Permission denied; set ContainerPath in the oci.conf to another directory" in said
    site.settle()


@pytest.mark.parametrize("known_by", ["%t", nightly("%s")])
def test_members_of_a_pod(make: MakeShimSite, shared: Path, known_by: str) -> None:
    """Each is a task of the same step, or has its own; none enters another's namespaces."""
    site = make(logging(shared, "run").replace("%s.%t", known_by))
    lives = []
    for number in range(2):
        config = site.config("sh", "-c", "echo up; read line; exit 4")
        config["annotations"] = {"org.scrun.pod": "together"}
        life = site.life(config=config, container=f"m{number}", stdin="pipe")
        lives.append(life.created().start().says("up"))
    assert len({life.state()["annotations"]["org.scrun.job_id"] for life in lives}) == 1
    runs = [line for line in (shared / "calls").read_text().splitlines() if " run " in line]
    assert len({line.split()[-1] for line in runs}) == 2
    for life in lives:
        life.close_stdin()
        life.ends(4)
    site.settle()


def test_the_shim_is_killed(make: MakeShimSite, shared: Path) -> None:
    """RunTimeDelete is called by the user's next shim on that node."""
    path = f"ContainerPath={shared}/made-%j\n"
    site = make(path + logging(shared, "run"))
    life = site.life("sleep", "600", environment={"SCRUN_JOB_NODELIST": "node1"})
    life.created().start()
    wait_until("it", lambda: "run" in called(shared))
    [pid] = shims_of(life.job_id)
    signal_quietly(pid, signal.SIGKILL)
    assert life.wait() != 0
    life.delete()
    following = site.life("true", environment={"SCRUN_JOB_NODELIST": "node1"}).created().start()
    following.ends()
    wait_while("its directory", lambda: list(shared.glob("made-*/oci-job*")))
    site.settle()


def test_several_tasks(make: MakeShimSite, shared: Path) -> None:
    """Each by the commands, with a number of its own."""
    site = make(logging(shared, "create"))
    life = site.shell('echo "task $SLURM_PROCID"', environment={"SCRUN_NTASKS": "2"})
    life.created().start()
    assert life.wait() == 0
    assert sorted(life.output().splitlines()) == ["task 0", "task 1"]
    life.delete()
    calls = (shared / "calls").read_text().splitlines()
    created = {line.split()[-1] for line in calls if " create " in line}
    assert sorted(name.split(".")[-1] for name in created) == ["0", "1"]
    assert called(shared).count("delete") == 2
    site.settle()


@pytest.mark.parametrize(
    ("tasks", "here"), [("1", True), nightly("1", False), nightly("2", False)]
)
def test_mpi_that_its_commands_do_not_pass_on(
    make: MakeShimSite, shared: Path, tasks: str, here: bool
) -> None:
    """Before a job is asked for, unless only the nodes have them."""
    site = make(logging(shared, "run"), here=here)
    asked = {"SCRUN_MPI_TYPE": "pmi2", "SCRUN_JOB_NUM_NODES": tasks}
    said = site.life("true", environment=asked).refused()
    where = "" if here else " on node1"
    assert f"SCRUN_MPI_TYPE=pmi2: cannot work: the commands of the oci.conf{where} do not" in said


@pytest.mark.oci_conf
def test_several_tasks_that_cannot_connect(make_site: MakeSite) -> None:
    """Then srun makes the container, and the log says why."""
    site = make_site("slurm-user", settings=SHIM, site_commands=True)
    life = site.shell("echo up", environment=unreached(site)).created()
    log = site.must("logs", "--messages", life.id)
    assert "no connection to the submit host: 127.0.0.1:" in log
    assert "No route to host: launched by srun --container" in log
    assert life.state()["annotations"]["org.scrun.launch"] == "container"
    life.start().ends(says="up\nup\n")


@pytest.mark.parametrize("way", ["create", nightly("run")])
def test_it_outlives_its_supervisor(make: MakeShimSite, shared: Path, way: str) -> None:
    """Its commands are those of the time when it began, whatever becomes of the oci.conf."""
    site = make(logging(shared, way))
    life = site.shell("trap 'exit 9' USR1; echo up; while :; do sleep 0.05; done").created()
    kill_supervisor(site)
    life.start(60).says("up", 30)
    cluster.oci_conf().write_text("RunTimeRun=exec false\n")
    kill_supervisor(site)
    assert site.must("exec", life.id, "echo", "inside") == "inside\n"
    assert "sleep" in site.must("ps", life.id)
    assert adoptions(life) == 2
    life.kill("USR1")
    assert life.wait() == 9
    assert called(shared).count("start" if way == "create" else "run") == 1
    assert "kill" in called(shared)
    end(life)
    assert called(shared)[-1] == "delete"


@pytest.mark.nightly
def test_members_of_a_pod_outlive_it(make: MakeShimSite, shared: Path) -> None:
    """A third one has a number of its own."""
    site = make(logging(shared, "run"))
    lives = []
    for kills in (False, False, True):
        if kills:
            kill_supervisor(site)
        config = site.config("sh", "-c", UNTIL_TOLD)
        config["annotations"] = {"org.scrun.pod": "together"}
        lives.append(site.life(config=config).created(60).start(60).says("up", 30))
    assert len(site.jobs()) == 1
    kill_supervisor(site)
    for life in lives:
        life.kill("USR1")
    assert [life.wait(30) for life in lives] == [7, 7, 7]
    end(*lives)


@pytest.mark.nightly
def test_no_byte_is_lost_or_doubled(make: MakeShimSite, shared: Path, dice: Random) -> None:
    site = make(logging(shared, "run"))
    life = site.shell(COUNT.format(200_000)).created(60).start(60)
    kill_now_and_then(site, dice, 4)
    assert life.wait(90) == 7
    assert output(life) == numbers(200_000)
    end(life)
