"""Fixtures of the clients of engines' APIs."""

from collections.abc import Iterator

import docker
import pytest

from tests.harness.engine_api import PLACES, Api, api_at
from tests.harness.networks import tun as tun
from tests.harness.wait import wait_while


@pytest.fixture(
    scope="module",
    params=[PLACES[0], *(pytest.param(place, marks=pytest.mark.nightly) for place in PLACES[1:])],
)
def _api(request: pytest.FixtureRequest) -> Iterator[Api]:
    with api_at(request.param) as api:
        yield api


@pytest.fixture
def api(_api: Api) -> Iterator[Api]:
    """An engine's API; no container and no job is left after a test."""
    yield _api
    try:
        assert _api.engine.must("ps", "--all", "--quiet") == ""
        if _api.on_slurm:
            wait_while("jobs", _api.jobs, 15)
    finally:
        for container in _api.engine.run("ps", "--all", "--quiet").stdout.split():
            _api.engine.run("rm", "--force", container)


@pytest.fixture
def client(api: Api) -> Iterator[docker.DockerClient]:
    """docker-py at that API."""
    client = docker.DockerClient(base_url=api.url, timeout=60)
    yield client
    client.close()
