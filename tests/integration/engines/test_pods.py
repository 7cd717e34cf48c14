"""Containers of one pod are steps of one job, on one node."""

import importlib.util
import json
from collections.abc import Iterator

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.networks import free_port
from tests.harness.podman import (
    RUN,
    Podman,
    compose,
    rootless_podman,
    write_compose,
    write_kube,
)
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("promise pods")

LIMITS = RUN[3:]  # of podman's `run`, without the network: that is the pod's
WHERE = "echo $SLURM_JOB_ID $SLURM_STEP_NODELIST"
STAYS = f"trap 'exit 0' TERM; {WHERE}; while :; do sleep 0.05; done"
as_user = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)


@pytest.fixture(scope="module")
def _podman() -> Iterator[Podman]:
    with rootless_podman(cgroup2=True) as podman:
        yield podman


@pytest.fixture
def podman(podman: Podman) -> Iterator[Podman]:
    """The same, and no pod is left after a test."""
    yield podman
    podman.must("pod", "rm", "--all", "--force", "--time", "0")


@pytest.fixture
def pod(podman: Podman) -> str:
    """A pod with the node's network; its name."""
    podman.must("pod", "create", "--name", "pod", "--network", "host")
    return "pod"


def member(podman: Podman, pod: str, name: str, *command: str) -> str:
    """Run one more container of a pod, in the background."""
    podman.must("run", *LIMITS, "--pod", pod, "--detach", "--name", name, "busybox", *command)
    return name


def stays(podman: Podman, pod: str, name: str) -> str:
    """Run one that tells where it is and stays until it is told to end."""
    return member(podman, pod, name, "sh", "-c", STAYS)


def said(podman: Podman, name: str) -> str:
    """What a container has said last."""

    def last() -> str:
        return (podman.must("logs", name).splitlines() or [""])[-1]

    return wait_until(f"{name} says something", last)


def state(podman: Podman, name: str) -> tuple[str, int]:
    """A container's status and exit status."""
    [inspected] = json.loads(podman.must("inspect", name))
    return inspected["State"]["Status"], inspected["State"]["ExitCode"]


def the_job(podman: Podman) -> str:
    """The one job of the user's, and its node, in the words of `WHERE`."""
    [job] = cluster.jobs(podman.site.user)
    number = job.split()[0]
    return f"{number} {cluster.node_of(number)}"


def infra_of(podman: Podman, pod: str) -> str:
    return podman.must("pod", "inspect", pod, "--format", "{{.InfraContainerID}}").strip()


# podman pod


@pytest.mark.covers("scrun pods: one job")
@pytest.mark.covers("podman pod")
@pytest.mark.covers("limitation pod is not supported")
@pytest.mark.covers("guide Types: Kubernetes pods")
def test_members_share_job_node_and_localhost(podman: Podman, pod: str) -> None:
    port = free_port()
    serve = f"mkdir /www; {WHERE} | tee /www/where; exec httpd -f -p 127.0.0.1:{port} -h /www"
    server = member(podman, pod, "server", "sh", "-c", serve)
    fetch = f"until wget -q -O - http://127.0.0.1:{port}/where; do sleep 0.05; done; {WHERE}"
    client = ("run", *LIMITS, "--pod", pod, "--rm", "busybox", "sh", "-c", fetch)
    assert podman.must(*client).splitlines() == [the_job(podman)] * 2
    assert said(podman, server) == the_job(podman)
    podman.must("pod", "rm", "--force", "--time", "0", pod)
    assert not [job for job in cluster.jobs(podman.site.user) if "COMPLETING" not in job]


@pytest.mark.covers("podman pod")
def test_stop_start_restart_pause_and_kill(podman: Podman, pod: str) -> None:
    def places() -> set[str]:
        return {said(podman, "one"), said(podman, "two")}

    stays(podman, pod, "one")
    stays(podman, pod, "two")
    assert places() == {the_job(podman)}
    assert "Running" in podman.must("pod", "ps")
    assert podman.must("pod", "ps", "--format", "{{.NumberOfContainers}}") == "3\n"
    assert the_job(podman) in podman.must("pod", "logs", pod)

    podman.must("pod", "stop", "--time", "5", pod)
    wait_while("the job", lambda: cluster.jobs(podman.site.user))
    assert state(podman, "one") == state(podman, "two") == ("exited", 0)
    podman.must("pod", "start", pod)
    wait_until("they are there again", lambda: places() == {the_job(podman)})
    podman.must("pod", "restart", pod)
    wait_until("they are there once more", lambda: places() == {the_job(podman)})

    podman.must("pod", "pause", pod)
    assert state(podman, "one")[0] == state(podman, "two")[0] == "paused"
    podman.must("pod", "unpause", pod)
    assert podman.must("exec", "two", "echo", "it goes on") == "it goes on\n"

    podman.must("pod", "kill", pod)
    wait_until("the end", lambda: state(podman, "one") == state(podman, "two") == ("exited", 137))
    wait_while("the job", lambda: cluster.jobs(podman.site.user))


@pytest.mark.covers("scrun pods: one job", "podman pod")
def test_the_others_go_on_when_one_ends(podman: Podman, pod: str) -> None:
    """Whichever that is: the infra container has asked for the job, and is only one of them."""
    stays(podman, pod, "one")
    stays(podman, pod, "two")
    where = said(podman, "two")
    podman.must("kill", "one")
    assert podman.must("wait", "one") == "137\n"
    infra = infra_of(podman, pod)
    podman.must("kill", infra)
    podman.must("wait", infra)
    assert podman.must("exec", "two", "echo", "it goes on") == "it goes on\n"
    assert the_job(podman) == where
    assert said(podman, stays(podman, pod, "three")) == where  # podman starts infra again
    assert the_job(podman) == where


@pytest.mark.covers("scrun pods: one job", "podman logs")
def test_a_job_that_is_cancelled_ends_all(podman: Podman, pod: str) -> None:
    names = [stays(podman, pod, name) for name in ("one", "two")]
    number = said(podman, "one").split()[0]
    assert said(podman, "two").split()[0] == number
    cluster.slurm("scancel", number)
    for name in names:
        assert podman.must("wait", name) == "122\n"
        logs = podman.run("logs", name)
        assert f"scrun: job {number} was cancelled" in logs.stderr


def test_without_infra_the_first_one_sizes_the_job(podman: Podman) -> None:
    podman.must("pod", "create", "--infra=false", "--name", "bare")
    run = (*RUN, "--detach", "--pod", "bare")
    for name, minutes in (("one", "5"), ("two", "7")):
        asked = ("--annotation", f"slurm.time={minutes}")
        podman.must(*run, "--name", name, *asked, "busybox", "sh", "-c", STAYS)
    assert said(podman, "one") == said(podman, "two") == the_job(podman)
    assert limit_of(podman) == "5:00"
    log = podman.site.base / "x" / "scrun" / full_id(podman, "two") / "log"
    assert "which has sized it: SCRUN_TIMELIMIT=7 have no effect" in log.read_text()


@pytest.mark.nightly
def test_members_are_on_the_first_node_of_a_job_of_several(podman: Podman) -> None:
    podman.must("pod", "create", "--infra=false", "--name", "wide")
    run = (*RUN, "--detach", "--pod", "wide")
    nodes = ("--annotation", "slurm.job_num_nodes=2")
    podman.must(*run, "--name", "one", *nodes, "busybox", "sh", "-c", STAYS)
    for name in ("two", "three", "four"):
        podman.must(*run, "--name", name, "busybox", "sh", "-c", STAYS)
    assert len({said(podman, name) for name in ("two", "three", "four")}) == 1
    podman.must("pod", "rm", "--force", "--time", "0", "wide")


@pytest.mark.nightly
def test_the_infra_image_sizes_the_job(podman: Podman) -> None:
    changes = ("--change", "ENV SCRUN_TIMELIMIT=6", "--change", 'CMD ["/bin/sleep", "infinity"]')
    podman.must("import", *changes, str(podman.site.base / "image.tar"), "sized")
    image = ("--infra-image", "localhost/sized")
    podman.must("pod", "create", *image, "--name", "sized", "--network", "host")
    stays(podman, "sized", "one")
    assert said(podman, "one") == the_job(podman)
    assert limit_of(podman) == "6:00"


def limit_of(podman: Podman) -> str:
    return cluster.slurm("squeue", "-h", "-u", podman.site.user.name, "-o", "%l").strip()


def full_id(podman: Podman, name: str) -> str:
    return podman.must("inspect", "--format", "{{.ID}}", name).strip()


@pytest.mark.covers("podman network")
def test_the_network_of_another_container(podman: Podman) -> None:
    podman.must(*RUN, "--detach", "--name", "one", "busybox", "sh", "-c", STAYS)
    two = ("run", *LIMITS, "--network", "container:one", "--rm", "busybox", "sh", "-c", WHERE)
    other = podman.must(*two).strip()
    assert said(podman, "one") == the_job(podman)
    # a network that is the host's has no path in the config.json that podman 5 writes
    assert (other == said(podman, "one")) is (podman.release < (5, 0))
    podman.must("rm", "--force", "--time", "0", "one")


@pytest.mark.nightly
def test_the_ipc_of_another_container(podman: Podman) -> None:
    sharing = ("--ipc", "shareable", "--name", "one")
    podman.must(*RUN, "--detach", *sharing, "busybox", "sh", "-c", STAYS)
    other = podman.must(*RUN, "--ipc", "container:one", "--rm", "busybox", "sh", "-c", WHERE)
    assert other.strip() == said(podman, "one") == the_job(podman)
    podman.must("rm", "--force", "--time", "0", "one")


# podman kube, podman-compose


@pytest.mark.covers("podman kube, play")
def test_kube_play_and_down(podman: Podman) -> None:
    path = write_kube(podman, STAYS)
    podman.must("kube", "play", path)
    assert said(podman, "web-one") == said(podman, "web-two") == the_job(podman)
    podman.must("kube", "down", path)
    assert podman.must("pod", "ps", "--quiet") == ""


@pytest.mark.covers("podman compose", "limitation compose is not supported")
@pytest.mark.skipif(
    importlib.util.find_spec("podman_compose") is None,
    reason="podman-compose is not installed beside pytest; Debian's 1.0.3 has no host network",
)
def test_compose_up_and_down(podman: Podman) -> None:
    write_compose(podman, STAYS)
    compose(podman, "up", "--detach")
    try:
        assert said(podman, "proj_one_1") == said(podman, "proj_two_1") == the_job(podman)
        hosts = podman.must("exec", "proj_one_1", "cat", "/etc/hosts").split("\n")
        assert {("127.0.0.1", "one"), ("127.0.0.1", "two")} <= {(*h.split(),) for h in hosts}
    finally:
        compose(podman, "down", "--timeout", "5")
    assert podman.must("pod", "ps", "--quiet") == ""


# Without an engine


def named(site: Site, pod: str, script: str = STAYS, **asking: str) -> Life:
    """Begin to create a container of a pod that was named by hand."""
    config = site.config("sh", "-c", script)
    config["annotations"] = {"org.scrun.pod": pod, **asking}
    return site.life(config=config)


@pytest.mark.covers("scrun pods: one job")
@as_user
def test_the_first_one_is_deleted_while_the_job_is_pending(site: Site) -> None:
    with cluster.full(site.user):
        first, second, third = (named(site, "pending") for _ in range(3))
        numbers = {wait_for_job(life) for life in (first, second, third)}
        [job] = site.jobs()
        assert numbers == {job.split()[0]}
        first.run("delete", "--force")
        assert site.jobs() == [job]
    for life in (second.created(), third.created()):
        life.start().says(job.split()[0])
    second.kill("KILL")
    assert second.wait() == 137
    third.kill("TERM")
    assert third.wait() == 0
    wait_while("the job", site.jobs)


@as_user
def test_a_pending_job_that_nobody_waits_for(site: Site) -> None:
    with cluster.full(site.user):
        lives = [named(site, "given-up") for _ in range(2)]
        assert len({wait_for_job(life) for life in lives}) == len(site.jobs()) == 1
        for life in lives:
            life.run("delete", "--force")
        assert site.jobs() == []


def job_of(life: Life) -> str:
    if life.status == "gone":  # not yet there
        return ""
    annotations: dict[str, str] = life.state()["annotations"]
    return annotations.get("org.scrun.job_id", "")


def wait_for_job(life: Life) -> str:
    return wait_until(f"a job for {life.id}", lambda: job_of(life))


@pytest.mark.covers("scrun pods: one job")
@as_user
def test_requests_that_the_job_cannot_fulfil(site: Site) -> None:
    """A later one that wants more than there is runs; srun would refuse such a step."""
    first = named(site, "small").created().start()
    second = named(site, "small", WHERE, SCRUN_CPUS_PER_TASK="3", SCRUN_MEM_PER_NODE="1T")
    second.created().start()
    assert second.wait() == 0
    first.says(second.output())


@pytest.mark.covers("scrun pods: one job")
def test_a_supervisor_for_each_pod(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='group = "pod"\nidle_timeout = 20\n')
    lives = [named(site, pod).created().start() for pod in ("a", "b", "a")]
    assert len(site.supervisors()) == 2
    found = [job_of(life) for life in lives]
    assert found[0] == found[2] != found[1]


def test_nothing_is_shared_on_this_machine(make_site: MakeSite) -> None:
    site = make_site("local-user")
    lives = [named(site, "pod", "exec true").created() for _ in range(2)]
    assert job_of(lives[0]) != job_of(lives[1])
    assert [life.start().wait() for life in lives] == [0, 0]
