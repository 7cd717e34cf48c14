"""Containers by the API, one after the other: nothing of them stays."""

import os

import docker
import pytest

from tests.harness.docker import Docker
from tests.harness.engine_api import Api
from tests.harness.processes import processes_of
from tests.harness.wait import wait_while

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.covers("promise clients"),
    pytest.mark.parametrize("_api", ["podman-slurm", "docker-slurm"], indirect=True),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

COUNT = int(os.environ.get("SCRUN_LIVES") or 200)


def held(api: Api) -> dict[str, int]:
    """How much there is of what containers have."""
    site = api.engine.site
    records = api.engine.records if isinstance(api.engine, Docker) else site.base / "x" / "scrun"
    return {
        "records": sum(not name.startswith("@") for name in os.listdir(records)),
        "processes": len(processes_of(str(site.base))),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in site.supervisors()),
        "sockets": sum(path.is_socket() for path in site.base.rglob("*")),
    }


@pytest.mark.timeout(900)
def test_nothing_stays(api: Api) -> None:
    client = docker.DockerClient(base_url=api.url, timeout=60)

    def run() -> None:
        said = client.containers.run("busybox", ["echo", "ok"], remove=True, network_mode="host")
        assert said == b"ok\n"

    run()
    before = held(api)
    for _ in range(COUNT):
        run()
    client.close()

    def more() -> dict[str, int]:
        return {what: count for what, count in held(api).items() if count > before[what]}

    wait_while("more than before", more, 30)
