"""Networks and ports by docker-py; with crun beside it."""

import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import docker
import pytest
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from tests.harness.engine_api import Api
from tests.harness.networks import free_port, gets_to
from tests.harness.wait import wait_until

pytestmark = [
    pytest.mark.covers("promise clients"),
    pytest.mark.parametrize(
        "_api",
        ["podman-slurm", pytest.param("podman-crun", marks=pytest.mark.nightly)],
        indirect=True,
    ),
    # it leaves connections of streams to the collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HTTPD = ["httpd", "-f", "-p", "80", "-h", "/etc"]
GROUP = b"root:x:0:\n"


@pytest.fixture
def client(api: Api, client: docker.DockerClient) -> Iterator[docker.DockerClient]:
    yield client
    api.engine.must("rm", "--all", "--force", "--time", "0")
    for network in client.networks.list():
        if network.name not in ("bridge", "podman"):  # its own
            network.remove()


def run(client: docker.DockerClient, *command: str, **options: Any) -> Container:
    return client.containers.run("busybox", list(command), detach=True, **options)


def answers(port: int | str) -> None:
    def got() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/group", timeout=10) as answer:
                return bool(answer.read() == GROUP)
        except OSError:
            return False

    wait_until("an answer", got)


def port_of(container: Container, name: str = "80/tcp") -> str:
    container.reload()
    [found] = container.ports[name]
    port: str = found["HostPort"]
    return port


# --- ports


def test_a_port_of_the_engine_s_choice(client: docker.DockerClient) -> None:
    answers(port_of(run(client, *HTTPD, ports={"80/tcp": None})))


def test_a_chosen_port(client: docker.DockerClient) -> None:
    port = free_port()
    container = run(client, *HTTPD, ports={"80/tcp": ("127.0.0.1", port)})
    answers(port)
    assert port_of(container) == str(port)


@pytest.mark.nightly
def test_several_ports(client: docker.DockerClient) -> None:
    first, second = free_port(), free_port()
    run(client, *HTTPD, ports={"80/tcp": [first, second]})
    answers(first)
    answers(second)


def test_a_port_that_is_taken(client: docker.DockerClient) -> None:
    """In the engine's own words; the first container has it still."""
    port = free_port()
    run(client, *HTTPD, ports={"80/tcp": port})
    answers(port)
    with pytest.raises(APIError, match="address already in use"):
        run(client, *HTTPD, ports={"80/tcp": port})
    answers(port)


@pytest.mark.nightly
def test_a_port_of_root_s(client: docker.DockerClient) -> None:
    """In the engine's own words, and no job stays."""
    with pytest.raises(APIError, match="privileged port"):
        run(client, *HTTPD, ports={"80/tcp": 81})


@pytest.mark.nightly
def test_ports_are_free_again(client: docker.DockerClient) -> None:
    port = free_port()
    for _ in range(2):
        container = run(client, *HTTPD, ports={"80/tcp": port})
        answers(port)
        container.remove(force=True)


def test_a_port_after_a_restart(client: docker.DockerClient) -> None:
    container = run(client, *HTTPD, ports={"80/tcp": free_port()})
    answers(port_of(container))
    container.restart(timeout=0)
    answers(port_of(container))


@pytest.mark.nightly
def test_an_exposed_port_that_is_published(client: docker.DockerClient) -> None:
    container = run(client, *HTTPD, ports={"80": None}, publish_all_ports=True)
    answers(port_of(container))


# --- networks


def test_a_network_by_itself(client: docker.DockerClient) -> None:
    network = client.networks.create("net", labels={"a": "b"})
    assert client.networks.get("net").id == network.id
    assert [one.id for one in client.networks.list(filters={"label": "a=b"})] == [network.id]
    assert [one.id for one in client.networks.list(names=["net"])] == [network.id]
    network.remove()
    with pytest.raises(NotFound):
        client.networks.get("net")


@pytest.mark.nightly
def test_two_of_a_name(client: docker.DockerClient) -> None:
    client.networks.create("net")
    with pytest.raises(APIError):
        client.networks.create("net", check_duplicate=True)


def test_names(client: docker.DockerClient, api: Api) -> None:
    """One container asks another one by its name."""
    client.networks.create("net")
    run(client, *HTTPD, name="server", network="net")
    run(client, "sleep", "1000", name="asks", network="net")
    gets_to(api.engine, "asks", "server")


@pytest.mark.nightly
def test_who_is_in_a_network(client: docker.DockerClient) -> None:
    client.networks.create("net")
    container = run(client, "sleep", "1000", network="net")
    container.reload()
    assert "net" in container.attrs["NetworkSettings"]["Networks"]
    assert container.attrs["NetworkSettings"]["Networks"]["net"]["IPAddress"]


@pytest.mark.nightly
def test_a_subnet(client: docker.DockerClient) -> None:
    pool = docker.types.IPAMPool(subnet="10.117.5.0/24", gateway="10.117.5.1")
    client.networks.create("net", ipam=docker.types.IPAMConfig(pool_configs=[pool]))
    container = run(client, "sleep", "1000", network="net")
    container.reload()
    networks = container.attrs["NetworkSettings"]["Networks"]
    assert networks["net"]["IPAddress"].startswith("10.117.5.")


@pytest.mark.nightly
def test_unused_networks(client: docker.DockerClient) -> None:
    client.networks.create("net")
    assert client.networks.prune()["NetworksDeleted"] == ["net"]


def test_no_network(client: docker.DockerClient) -> None:
    container = run(client, "cat", "/proc/net/dev", network_mode="none")
    assert container.wait()["StatusCode"] == 0
    said = container.logs().decode()
    assert "lo:" in said
    assert "eth0" not in said
    assert "tap0" not in said


def test_the_network_of_another_one(client: docker.DockerClient) -> None:
    """It reaches what listens there on the loopback."""
    server = run(client, *HTTPD, network_mode="none", name="server")
    time.sleep(0.5)
    asks = run(
        client, "wget", "-q", "-O", "-", "http://127.0.0.1/group",
        network_mode=f"container:{server.id}",
    )  # fmt: skip
    assert asks.wait()["StatusCode"] == 0
    assert asks.logs() == GROUP
    asks.remove()
