"""podman's containers run in a pool that the settings name, without a new option."""

from collections.abc import Iterator

import pytest

from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.podman import RUN, Podman, compose, podman_of, write_compose, write_kube
from tests.harness.users import User, ordinary, root
from tests.harness.wait import wait_until, wait_while

AUTO = 'launch = "shim"\npool = "auto"\npool_idle = 3\npool_node = {cpus_per_task = 8}\n'
JOB = "echo $SLURM_JOB_ID; exec sleep 600"


@pytest.fixture(params=[ordinary, nightly(root)])
def podman(request: pytest.FixtureRequest) -> Iterator[Podman]:
    user: User = request.param()
    settings = 'launch = "shim"\npool = "mine"\n'
    with podman_of(user, settings=settings) as podman:
        yield podman


@pytest.fixture(params=[ordinary, nightly(root)])
def automatic(request: pytest.FixtureRequest) -> Iterator[Podman]:
    user: User = request.param()
    with podman_of(user, settings=AUTO) as podman:
        yield podman


def in_its_namespaces(podman: Podman, *words: str) -> str:
    """Call scrun where podman calls it."""
    if podman.site.user.uid:
        return podman.must("unshare", podman.site.command[0], *words)
    return podman.scrun(f"--config-file={podman._settings}", *words)


def said(podman: Podman, name: str) -> str:
    return wait_until("its job", lambda: podman.must("logs", name).splitlines())[0]


def begun(podman: Podman) -> list[str]:
    """Begin containers by themselves, in a pod, and by compose; their names."""
    podman.must(*RUN, "--detach", "--name", "alone", "busybox", "sh", "-c", JOB)
    podman.must("kube", "play", "--network", "host", write_kube(podman, JOB))
    if not podman.site.user.uid:
        return ["alone", "web-one", "web-two"]
    write_compose(podman, JOB)
    compose(podman, "up", "--detach")
    return ["alone", "web-one", "web-two", "proj_one_1", "proj_two_1"]


def removed(podman: Podman) -> None:
    podman.must("pod", "rm", "--all", "--force", "--time", "0")
    podman.must("rm", "--all", "--force", "--time", "0")


def test_they_share_its_job(podman: Podman) -> None:
    job = in_its_namespaces(podman, "pool", "start", "mine", "-c", "8").split()[-1]
    assert {said(podman, name) for name in begun(podman)} == {job}
    assert [line.split()[0] for line in cluster.jobs(podman.site.user)] == [job]
    removed(podman)
    wait_until("an idle node", lambda: "idle" in in_its_namespaces(podman, "pool", "list"))
    in_its_namespaces(podman, "pool", "stop", "mine")
    wait_while("jobs", lambda: cluster.jobs(podman.site.user), 20)


def test_nobody_starts_auto(automatic: Podman) -> None:
    """The first container has a supervisor of its own, and a job: conmon waits for that."""
    _, *others = begun(automatic)
    [job] = {said(automatic, name) for name in others}
    names = [line.split()[::2] for line in cluster.jobs(automatic.site.user)]
    assert [job, "pool-auto"] in names
    assert len(names) == 2
    removed(automatic)
    wait_while("jobs", lambda: cluster.jobs(automatic.site.user), 20)


def test_the_first_one_asks_for_auto(automatic: Podman) -> None:
    asked = (*RUN, "--rm", "--annotation", "slurm.pool=auto")
    words = ("sh", "-c", "echo $SLURM_JOB_NAME")
    assert automatic.must(*asked, "busybox", *words).strip() == "pool-auto"
    wait_while("jobs", lambda: cluster.jobs(automatic.site.user), 20)
