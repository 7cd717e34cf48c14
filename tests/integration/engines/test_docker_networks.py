"""docker's networks, and the ports that it publishes, where the container is a job.

Up to 27 dockerd has a hook for that, later ones make a network between `create` and `start`.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import permutations

import pytest

from tests.harness import cluster
from tests.harness.adoption import kill_all_supervisors
from tests.harness.docker import Docker
from tests.harness.networks import free_port, gets_to, reach_each_other
from tests.harness.networks import tun as tun
from tests.harness.nightly import nightly
from tests.harness.wait import wait_until
from tests.integration.engines.test_networks import (
    AT_ITS_NAME,
    COMPOSE,
    ELSEWHERE,
    HTTPD,
    NAME_OF_NODE,
    answers,
    comes_back_elsewhere,
)

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


@pytest.fixture(scope="module", params=["root", nightly("rootless")])
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
    docker.must("run", "--detach", "--network", "net", "--name", "db", *AT_ITS_NAME)
    docker.must("run", "--detach", "--network", "net", "--name", "web", "busybox", "sleep", "1000")
    docker.must(
        "run", "--runtime", "runc", "--detach", "--network", "net", "--name", "here", *HTTPD
    )
    for who, other in (("web", "db"), ("web", "here"), ("here", "db")):
        gets_to(docker, who, other)
    ping = docker.run("exec", "web", "ping", "-c", "1", "db")
    assert "Operation not permitted" in ping.stderr  # TCP alone is carried
    docker.remove("web", "db", "here")
    docker.must("network", "rm", "net")


def test_a_network_that_a_running_container_gets(docker: Docker) -> None:
    """It began with docker's first network, which has no name server."""
    docker.must("network", "create", "net")
    docker.must("run", "--detach", "--name", "web", *HTTPD)
    docker.must("run", "--detach", "--network", "net", "--name", "db", *HTTPD)
    reach_each_other(docker, "web", "db", "net")
    docker.remove("web", "db")
    docker.must("network", "rm", "net")


def test_a_container_that_comes_back_on_another_node(docker: Docker) -> None:
    comes_back_elsewhere(docker)


@pytest.mark.nightly
def test_services_of_a_compose_file(docker: Docker) -> None:
    """Each finds the others by name, on two nodes, and one is published."""
    port = free_port()
    path = docker.base / "compose.yaml"
    path.write_text(COMPOSE.format(image="busybox", port=port) + ELSEWHERE)
    compose = ("--file", str(path), "--project-name", "proj")
    services = ("web", "api", "db")
    docker.compose(*compose, "up", "--detach")
    answers(port)
    ids = {one: docker.compose(*compose, "ps", "--quiet", one).strip() for one in services}
    nodes = {docker.must("exec", ids[one], *NAME_OF_NODE) for one in services}
    assert nodes == {"node1\n", "node2\n"}
    for one, other in permutations(services, 2):
        gets_to(docker, ids[one], other)
    docker.compose(*compose, "down", "--timeout", "1")
    assert "proj" not in docker.must("network", "ls")


@pytest.mark.nightly
def test_datagrams_are_refused(docker: Docker) -> None:
    port = free_port()
    sleep = ("busybox", "sleep", "1000")
    container = docker.must("run", "--detach", "-p", f"{port}:81/udp", *sleep).strip()

    def asked() -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"?", ("127.0.0.1", port))
        return "UDP does not reach its ports" in (docker.records / container / "log").read_text()

    wait_until("a line", asked)
    docker.remove(container)


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

    def are_those_of_the_node(one: str) -> bool:
        return sorted(interfaces(docker, one)) == sorted(os.listdir("/sys/class/net"))

    for one in (container, again):  # interfaces of other tests come and go
        wait_until("the node's interfaces", partial(are_those_of_the_node, one))
    test_a_published_port(docker)
    docker.remove(container, again)
