"""testcontainers, which tests of other projects make their servers by."""

import urllib.request

import pytest
from testcontainers.core.config import ConnectionMode, testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.waiting_utils import wait_for_logs

from tests.harness.engine_api import Api

pytestmark = [
    pytest.mark.covers("promise clients"),
    pytest.mark.parametrize("_api", ["podman-slurm"], indirect=True),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def client(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own container that cleans up is an image from the net; and this is not a container."""
    monkeypatch.setenv("DOCKER_HOST", api.url)
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
    mode = ConnectionMode.docker_host
    monkeypatch.setattr(testcontainers_config, "connection_mode_override", mode)


def test_a_server_whose_port_is_exposed() -> None:
    """It is a job; the client reaches it at a port of this machine's."""
    command = "sh -c 'echo it serves; exec busybox httpd -f -p 80 -h /etc'"
    with DockerContainer("busybox").with_command(command).with_exposed_ports(80) as server:
        wait_for_logs(server, "it serves", timeout=60)
        host, port = server.get_container_host_ip(), server.get_exposed_port(80)
        with urllib.request.urlopen(f"http://{host}:{port}/group", timeout=30) as answer:
            assert answer.read() == b"root:x:0:\n"
        status, said = server.exec(["sh", "-c", "echo $SLURM_JOB_ID"])
        assert (status, said.strip().isdigit()) == (0, True)
