"""podman's own client for Python, by the part of its API that docker's clients do not have."""

import contextlib
from collections.abc import Iterator

import podman
import pytest

from tests.harness.engine_api import Api

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.covers("promise clients"),
    pytest.mark.parametrize("_api", ["podman-slurm"], indirect=True),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def client(api: Api) -> Iterator[podman.PodmanClient]:
    with contextlib.closing(podman.PodmanClient(base_url=api.url)) as client:
        yield client


def test_a_container(client: podman.PodmanClient) -> None:
    assert client.ping()
    command = ["sh", "-c", "echo job=$SLURM_JOB_ID; exit 7"]
    container = client.containers.create("busybox", command, network_mode="host")
    container.start()
    assert container.wait() == 7
    [said] = container.logs()
    assert said.strip().removeprefix(b"job=").isdigit()
    container.remove()


def test_an_exec(client: podman.PodmanClient) -> None:
    container = client.containers.create("busybox", ["sleep", "1000"], network_mode="host")
    container.start()
    try:
        status, said = container.exec_run(["echo", "in it"], demux=True)
        assert (status, said) == (0, (b"in it\n", None))
    finally:
        container.remove(force=True)


def test_a_pod(client: podman.PodmanClient) -> None:
    """Its containers are in one job."""
    pod = client.pods.create("p", netns={"nsmode": "host"})
    for name in ("one", "two"):
        command = ["sh", "-c", f"echo $SLURM_JOB_ID > /dev/shm/{name}; sleep 1000"]
        client.containers.create("busybox", command, pod=pod.id, name=name)
    pod.start()
    jobs = {
        client.containers.get(name).exec_run(["sh", "-c", "echo $SLURM_JOB_ID"])[1]
        for name in ("one", "two")
    }
    assert len(jobs) == 1
    pod.remove(force=True)
