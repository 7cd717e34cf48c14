"""testcontainers, which tests of other projects make their servers by."""

import urllib.request
from typing import Any

import pytest
from docker.errors import APIError
from testcontainers.core.config import ConnectionMode, testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.waiting_utils import wait_for_logs

from tests.harness.engine_api import Api
from tests.harness.networks import free_port
from tests.harness.nightly import nightly

pytestmark = [
    pytest.mark.covers("promise clients"),
    pytest.mark.parametrize(
        "_api",
        ["podman-slurm", nightly("podman-crun")],
        indirect=True,
    ),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SERVES = "sh -c 'echo it serves; exec busybox httpd -f -p 80 -h /etc'"


@pytest.fixture(autouse=True)
def client(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own container that cleans up is an image from the net; and this is not a container."""
    monkeypatch.setenv("DOCKER_HOST", api.url)
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
    mode = ConnectionMode.docker_host
    monkeypatch.setattr(testcontainers_config, "connection_mode_override", mode)


def answers(server: DockerContainer) -> None:
    wait_for_logs(server, "it serves", timeout=60)
    host, port = server.get_container_host_ip(), server.get_exposed_port(80)
    with urllib.request.urlopen(f"http://{host}:{port}/group", timeout=30) as answer:
        assert answer.read() == b"root:x:0:\n"


def of_its(server: DockerContainer, kind: str, name: str) -> dict[str, Any]:
    """What the engine says of its ports."""
    container = server.get_wrapped_container()
    container.reload()
    found: dict[str, Any] = container.attrs[kind][name]
    return found


def test_a_server_whose_port_is_exposed(api: Api) -> None:
    """It is a job; the client reaches it at a port of this machine's."""
    with DockerContainer("busybox").with_command(SERVES).with_exposed_ports(80) as server:
        answers(server)
        status, said = server.exec(["sh", "-c", "echo $SLURM_JOB_ID"])
        assert (status, said.strip().isdigit()) == (0, api.on_slurm)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [("80", "{}"), nightly("80/tcp", "{}/tcp"), nightly(80, "{}"), nightly(80, None), ("80", "")],
)
def test_a_server_whose_port_is_bound(inside: str | int, outside: str | None) -> None:
    """To a port that the client chooses, or to any."""
    port = free_port()
    server = DockerContainer("busybox").with_command(SERVES)
    with server.with_bind_ports(inside, outside and outside.format(port)):
        answers(server)
        assert not outside or int(server.get_exposed_port(80)) == port


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("inside", "outside"),
    [("8125/udp", "{}"), ("8125/udp", "{}/udp"), ("8125", "{}/udp"), ("8125/udp", None)],
)
def test_datagrams_are_bound(inside: str, outside: str | None) -> None:
    """The container runs; what arrives there is refused (docs/howto/networks.md)."""
    port = free_port()
    server = DockerContainer("busybox").with_command("sleep 1000")
    with server.with_bind_ports(inside, outside and outside.format(port)):
        [bound] = of_its(server, "HostConfig", "PortBindings")["8125/udp"]
        assert bound["HostPort"] == str(port) if outside else bound["HostPort"].isdigit()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        (["8125/udp"], {"8125/udp"}),
        (["8092/udp", "9000/tcp"], {"8092/udp", "9000/tcp"}),
        (["8080", "8080/udp"], {"8080/tcp", "8080/udp"}),
        ([9000], {"9000/tcp"}),
        ([8080, 8080], {"8080/tcp"}),
        (["9001", 9002], {"9001/tcp", "9002/tcp"}),
        (["9001", 9002, "9003/udp"], {"9001/tcp", "9002/tcp", "9003/udp"}),
    ],
)
def test_which_are_exposed(ports: list[str | int], expected: set[str]) -> None:
    server = DockerContainer("busybox").with_command("sleep 1000")
    with server.with_exposed_ports(*ports):
        assert set(of_its(server, "Config", "ExposedPorts")) == expected


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("inside", "outside"), [("0", "8080"), ("8080", "abc"), (0, 0), (-1, 8080), (None, 8080)]
)
def test_what_is_no_port(inside: Any, outside: Any) -> None:
    """An error, and there is no container."""
    with pytest.raises(APIError):
        DockerContainer("busybox").with_bind_ports(inside, outside).start()


@pytest.mark.nightly
@pytest.mark.parametrize("ports", [(9000, None), ("", 9000), ("tcp", "")])
def test_what_cannot_be_exposed(ports: tuple[Any, ...]) -> None:
    with pytest.raises(APIError):
        DockerContainer("busybox").with_exposed_ports(*ports).start()
