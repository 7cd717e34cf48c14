"""docker's networks, and the ports that it publishes, where the container is a job.

Up to 27 dockerd has a hook for that, later ones make a network between `create` and `start`.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness import cluster
from tests.harness.adoption import kill_all_supervisors
from tests.harness.docker import Docker
from tests.harness.networks import address_of, fetched
from tests.harness.networks import tun as tun
from tests.harness.wait import wait_until
from tests.integration.engines.test_networks import GROUP, HTTPD, answers, free_port

pytestmark = pytest.mark.covers("promise networks")

BRIDGE, ADDRESS = "scrun-test0", "10.211.7.1/24"


@contextmanager
def docker_of(kind: str) -> Iterator[Docker]:
    """A dockerd with networks: rootless its own, in rootlesskit's network; as root of a bridge."""
    if kind == "rootless":
        with Docker(rootless=True) as docker:
            yield docker
        return
    subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "addr", "add", ADDRESS, "dev", BRIDGE], check=True)
        with Docker(bridge=BRIDGE) as docker:
            yield docker
    finally:
        subprocess.run(["ip", "link", "del", BRIDGE], check=True)


@pytest.fixture(scope="module", params=["root", "rootless"])
def _docker(request: pytest.FixtureRequest) -> Iterator[Docker]:
    with cluster.without_oci_conf(), docker_of(request.param) as docker:
        yield docker


@pytest.fixture
def docker(_docker: Docker) -> Iterator[Docker]:
    yield _docker
    _docker.clear()


def interfaces(docker: Docker, container: str) -> list[str]:
    said = docker.must("exec", container, "cat", "/proc/net/dev")
    return [line.partition(":")[0].strip() for line in said.splitlines() if ":" in line]


def test_a_published_port(docker: Docker) -> None:
    port = free_port()
    container = docker.must("run", "--detach", "-p", f"{port}:80", *HTTPD).strip()
    answers(port)
    assert interfaces(docker, container) == ["lo", "tap0"]
    kill_all_supervisors(docker.site)
    answers(port)
    assert interfaces(docker, container) == ["lo", "tap0"]
    docker.remove(container)


def test_containers_of_a_network_find_one_another(docker: Docker) -> None:
    docker.must("network", "create", "net")
    docker.must("run", "--detach", "--network", "net", "--name", "db", *HTTPD)
    docker.must("run", "--detach", "--network", "net", "--name", "web", "busybox", "sleep", "1000")
    address = address_of(docker, "web", "db")
    wait_until("an answer", lambda: fetched(docker, "web", address) == GROUP.decode())
    docker.remove("web", "db")
    docker.must("network", "rm", "net")


def test_no_network_stays_none(docker: Docker) -> None:
    container = docker.must("run", "--detach", "--network", "none", *HTTPD).strip()
    assert interfaces(docker, container) == ["lo"]
    docker.remove(container)


def test_the_network_of_the_host_is_the_nodes(docker: Docker) -> None:
    """It has a path in config.json, of the network that dockerd is in; rules there break ports."""
    sleep = ("busybox", "sleep", "1000")
    container = docker.must("run", "--detach", "--network", "host", *sleep).strip()
    test_a_published_port(docker)
    again = docker.must("run", "--detach", "--network", "host", *sleep).strip()
    for one in (container, again):
        assert sorted(interfaces(docker, one)) == sorted(os.listdir("/sys/class/net"))
    test_a_published_port(docker)
    docker.remove(container, again)
