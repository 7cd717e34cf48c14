"""Containers of more than one node and task: SCRUN_JOB_NUM_NODES, SCRUN_NTASKS."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.podman import RUN, Podman
from tests.harness.site import Site
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("guide bundles are not transferred")

on_slurm = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)

TWO = {"SCRUN_JOB_NUM_NODES": "2", "SCRUN_NTASKS": "2"}
LABELLED = {**TWO, "SCRUN_LABELIO": "1"}
# Both nodes are this host, and the container of each has a PID namespace of its own; srun's label
# is what tells them apart.


@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) INPUT ENVIRONMENT VARIABLES: requests")
@on_slurm
def test_two_nodes_and_tasks(site: Site) -> None:
    life = site.shell("echo here", environment=LABELLED).created()
    assert cluster.slurm("squeue", "-h", "-n", site.base.name, "-o", "%D %C") == "2 2\n"
    life.start()
    assert life.wait() == 0
    assert sorted(life.output().splitlines()) == ["0: here", "1: here"]
    assert life.errors() == ""


@on_slurm
@pytest.mark.parametrize(
    ("environment", "tasks"),
    [
        ({"SCRUN_JOB_NUM_NODES": "2"}, 2),  # a task each
        ({"SCRUN_JOB_NUM_NODES": "2", "SCRUN_NTASKS": "1"}, 1),
        ({"SCRUN_NTASKS": "2", "SCRUN_NTASKS_PER_NODE": "1"}, 2),  # by salloc
    ],
)
def test_how_many_tasks(site: Site, environment: dict[str, str], tasks: int) -> None:
    life = site.shell("echo here", environment=environment).created().start()
    assert life.wait() == 0
    assert life.output() == "here\n" * tasks


@on_slurm
def test_standard_error_is_labelled_too(site: Site) -> None:
    life = site.shell("echo err >&2", environment=LABELLED).created().start()
    assert life.wait() == 0
    assert life.output() == ""
    assert sorted(life.errors().splitlines()) == ["0: err", "1: err"]


# What a task does depends on the one line that only task 0 gets, or on who comes first: both
# write to the same directory, as both nodes are this host.


def with_shared_directory(site: Site, script: str) -> Life:
    config = site.config("sh", "-c", script)
    shared = site.base / "b" / f"shared-{len(list((site.base / 'b').iterdir()))}"
    shared.mkdir()
    site.user.give(shared)
    config["mounts"].append(
        {"destination": "/tmp", "type": "bind", "source": str(shared), "options": ["rbind"]}
    )
    return site.life(config=config, environment={**TWO, "SCRUN_DEBUG": "debug"})


@pytest.mark.every_launch
@on_slurm
@pytest.mark.parametrize(
    ("first", "second"), [nightly(3, 0), (0, 5), (7, 4), nightly(0, 0), (2, 137)]
)
def test_the_highest_status_counts(site: Site, first: int, second: int) -> None:
    script = f"if mkdir /tmp/first; then exit {first}; else sleep 0.2; exit {second}; fi"
    life = with_shared_directory(site, script).created().start()
    assert life.wait() == max(first, second)


def test_a_task_that_fails_ends_the_others_if_the_site_says_so(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    folder = site.base / "l" / "etc"
    folder.mkdir()
    text = Path(cluster.slurm_conf()).read_text()
    (folder / "slurm.conf").write_text(f"{text}KillOnBadExit=1\n")
    oci_conf = Path(cluster.slurm_conf()).with_name("oci.conf")
    if oci_conf.exists():
        shutil.copy(oci_conf, folder)
    site.environment["SLURM_CONF"] = str(folder / "slurm.conf")
    first = "until test -e /tmp/other; do sleep 0.01; done; exit 3"
    script = f"if mkdir /tmp/first; then {first}; fi; touch /tmp/other; exec sleep 600"
    life = with_shared_directory(site, script)
    assert life.created().start().wait() == 137
    life.delete()


@pytest.mark.every_launch
@on_slurm
def test_stdin_goes_to_all_tasks(site: Site) -> None:
    life = site.life("cat", stdin="pipe", environment=LABELLED).created().start()
    os.write(life.stdin, b"line\n")
    life.close_stdin()
    assert life.wait() == 0
    assert sorted(life.output().splitlines()) == ["0: line", "1: line"]


@on_slurm
def test_running_when_all_run(site: Site) -> None:
    life = site.shell("echo up; sleep 600", environment=TWO).created().start().says("up", times=2)
    assert life.status == "running"
    life.kill("KILL")
    assert life.wait() == 137


# Signals

TRAP = "trap 'echo got; exit 9' USR1; echo up; while :; do sleep 0.1; done"


@on_slurm
def test_a_signal_reaches_all_nodes(site: Site) -> None:
    life = site.shell(TRAP, environment=LABELLED).created().start().says("up", times=2)
    life.kill("USR1")
    assert life.wait() == 9
    got = [line for line in life.output().splitlines() if "got" in line]
    assert sorted(got) == ["0: got", "1: got"]


@pytest.mark.every_launch
@on_slurm
def test_a_signal_reaches_each_task_once(site: Site) -> None:
    script = "trap 'echo got' USR1; trap 'exit 4' TERM; echo up; while :; do sleep 0.1; done"
    life = site.shell(script, environment=LABELLED).created().start().says("up", times=2)
    for times in (2, 4, 6):
        life.kill("USR1")
        life.says("got", times=times)
    life.kill("TERM")
    assert life.wait() == 4
    assert life.output().count("got") == 6


@on_slurm
def test_a_signal_when_one_task_has_ended(site: Site) -> None:
    script = f"mkdir /tmp/first || exit 0; {TRAP}"
    life = with_shared_directory(site, script).created().start().says("up")
    log = site.root / life.id / "log"
    wait_until("one has ended", lambda: ": Completed" in log.read_text())
    life.kill("USR1", timeout=2.5)  # which is less than the patience with those that begin
    assert life.wait() == 9
    assert life.output() == "up\ngot\n"


@on_slurm
def test_a_signal_of_the_anchor(site: Site) -> None:
    life = site.shell(TRAP, environment=TWO).created().start().says("up", times=2)
    os.kill(life.anchor, signal.SIGUSR1)
    assert life.wait() == 9
    assert life.output().count("got") == 2


@on_slurm
def test_kill_ends_all(site: Site) -> None:
    life = site.shell("trap '' TERM; echo up; while :; do sleep 1; done", environment=TWO)
    life.created().start().says("up", times=2)
    life.kill("KILL")
    life.ends(137)
    site.settle()


@on_slurm
@pytest.mark.parametrize("force", [[], nightly(["--force"])])
def test_delete_ends_all(site: Site, force: list[str]) -> None:
    life = site.shell("trap '' TERM; echo up; while :; do sleep 1; done", environment=TWO)
    life.created().start().says("up", times=2)
    done = site.run("delete", *force, life.id)
    assert (done.returncode, done.stdout) == (0, "")
    assert ("--force says that you mean it" in done.stderr) is not bool(force)
    assert life.wait() != 0
    site.settle()


# What cannot be


@on_slurm
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"SCRUN_NTASKS": "many"}, "SCRUN_NTASKS=many: not a number"),
        ({"SCRUN_JOB_NUM_NODES": "many"}, '"many" is not a valid node count'),
    ],
)
def test_what_cannot_be(site: Site, environment: dict[str, str], said: str) -> None:
    assert said in site.life("true", environment=environment).refused()
    site.settle()


# Several tasks on a node


def one_on_a_node(site: Site) -> bool:
    """Whether a node runs one task of a container only."""
    return slurm_version().containers_per_node == 1 and not site.by_shim


@pytest.mark.every_launch
@on_slurm
@pytest.mark.parametrize(
    ("environment", "tasks", "said"),
    [
        (
            {"SCRUN_JOB_NUM_NODES": "2", "SCRUN_NTASKS": "4"},
            4,
            "SCRUN_NTASKS=4: Slurm 22.05 runs one container of a job on each node, and "
            "SCRUN_JOB_NUM_NODES is 2; set it to 4",
        ),
        (
            {"SCRUN_NTASKS_PER_NODE": "2"},
            2,
            "SCRUN_NTASKS_PER_NODE=2: Slurm 22.05 runs one container of a job on each node",
        ),
        # only the grant tells that salloc has put both on one node
        ({"SCRUN_NTASKS": "2"}, 2, "set SCRUN_JOB_NUM_NODES to 2"),
    ],
)
def test_several_on_a_node(site: Site, environment: dict[str, str], tasks: int, said: str) -> None:
    life = site.shell(TRAP, environment={**environment, "SCRUN_LABELIO": "1"})
    if one_on_a_node(site):
        assert said in life.refused()
        site.settle()
        return
    life.created().start().says("up", times=tasks)
    life.kill("USR1")
    assert life.wait() == 9
    got = [line for line in life.output().splitlines() if "got" in line]
    assert sorted(got) == [f"{task}: got" for task in range(tasks)]


# Within a job


@pytest.fixture
def job(site: Site) -> Iterator[dict[str, str]]:
    """The variables of a job of two nodes of the user's own, as a process in it has them."""
    number = cluster.slurm(
        "sbatch", "--parsable", "-N2", "-o", "/dev/null", "--job-name=outer",
        f"--uid={site.user.uid}", f"--gid={site.user.gid}", "--chdir=/",
        "--wrap", "exec sleep 600",
    ).strip()  # fmt: skip
    try:
        wait_until("it runs", lambda: f"{number} RUNNING outer" in cluster.jobs(site.user), 30)
        yield {
            "SLURM_JOB_ID": number,
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_NNODES": "2",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_NTASKS": "2",
        }
    finally:
        cluster.slurm("scancel", number)
        wait_until("it is gone", lambda: "outer" not in str(cluster.jobs(site.user)))


@on_slurm
@pytest.mark.parametrize(
    ("asked", "output"),
    [
        ({}, ["0: here"]),
        nightly({"SCRUN_JOB_NUM_NODES": "2"}, ["0: here", "1: here"]),
        nightly({"SCRUN_NTASKS": "2"}, ["0: here", "1: here"]),
        ({"SCRUN_JOB_NUM_NODES": "2", "SCRUN_NTASKS": "2"}, ["0: here", "1: here"]),
        nightly({"SCRUN_JOB_NUM_NODES": "1"}, ["0: here"]),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_within_a_job(
    site: Site, job: dict[str, str], asked: dict[str, str], output: list[str], known: bool
) -> None:
    inside = job if known else {"SLURM_JOB_ID": job["SLURM_JOB_ID"]}
    environment = {**inside, **asked, "SCRUN_LABELIO": "yes"}
    life = site.shell("echo here", environment=environment).created().start()
    assert life.wait() == 0
    assert sorted(life.output().splitlines()) == output
    life.delete()
    assert f"{job['SLURM_JOB_ID']} RUNNING outer" in cluster.jobs(site.user)


@on_slurm
def test_more_than_the_job_has(site: Site, job: dict[str, str]) -> None:
    said = site.life("true", environment={**job, "SCRUN_JOB_NUM_NODES": "3"}).refused()
    assert f"job {job['SLURM_JOB_ID']} has 2 nodes; lower it" in said


@on_slurm
def test_more_tasks_than_the_job_has_nodes(site: Site, job: dict[str, str]) -> None:
    life = site.life("echo", "here", environment={**job, "SCRUN_NTASKS": "3"})
    if one_on_a_node(site):
        assert f"job {job['SLURM_JOB_ID']} has 2 nodes; request at most 2" in life.refused()
        return
    if site.by_shim:
        assert "More processors requested than permitted" in life.refused()
        return
    life.created().start()
    assert life.wait() == 125
    assert "More processors requested than permitted" in life.errors()


@pytest.mark.every_launch
@on_slurm
def test_a_signal_within_a_job_of_which_only_the_number_is_known(
    site: Site, job: dict[str, str]
) -> None:
    environment = {"SLURM_JOB_ID": job["SLURM_JOB_ID"], **TWO}
    life = site.shell(TRAP, environment=environment).created().start().says("up", times=2)
    life.kill("USR1")
    assert life.wait() == 9
    assert life.output().count("got") == 2


# Podman, which passes nothing of its environment on


@pytest.mark.parametrize("how", ["--env", nightly("--annotation")])
def test_podman_asks_for_two_nodes(podman: Podman, how: str) -> None:
    asked = ["SCRUN_JOB_NUM_NODES=2", "SCRUN_NTASKS=2", "SCRUN_LABELIO=1"]
    options = [word for request in asked for word in (how, request)]
    script = "env | grep -e ^SCRUN_ -e ^SLURM_STEP_NUM_NODES; exit 6"
    done = podman.run(*RUN, "--rm", *options, "busybox", "sh", "-c", script)
    lines = sorted(done.stdout.splitlines())
    assert (done.returncode, done.stderr) == (6, "")
    assert lines == ["0: SLURM_STEP_NUM_NODES=2", "1: SLURM_STEP_NUM_NODES=2"]


def test_podman_kill_reaches_all_nodes(podman: Podman) -> None:
    options = ("--env", "SCRUN_JOB_NUM_NODES=2", "--env", "SCRUN_LABELIO=1")
    container = podman.must(*RUN, "--detach", *options, "busybox", "sh", "-c", TRAP).strip()
    wait_until("both are up", lambda: podman.must("logs", container).count("up") == 2)
    podman.must("kill", "--signal", "USR1", container)
    assert podman.must("wait", container) == "9\n"
    lines = sorted(podman.must("logs", container).splitlines())
    assert lines == ["0: got", "0: up", "1: got", "1: up"]
    podman.must("rm", container)
