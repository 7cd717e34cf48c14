"""Fixtures of engines."""

import os
from collections.abc import Iterator

import pytest

from tests.harness import cluster
from tests.harness.podman import Podman, rootless_podman
from tests.harness.site import Site
from tests.harness.wait import wait_while


@pytest.fixture
def queue(site: Site) -> Iterator[None]:
    """A cluster that is full for the user of the test's site."""
    with cluster.full(site.user):
        yield


@pytest.fixture(scope="module")
def _podman() -> Iterator[Podman]:
    with rootless_podman() as podman:
        yield podman


@pytest.fixture
def podman(_podman: Podman) -> Iterator[Podman]:
    """Podman with an image called busybox; no container and no job is left after a test."""
    yield _podman
    try:
        assert _podman.must("ps", "--all", "--quiet") == ""
        # what is told to end while it is being launched is killed after KillWait + 5 s
        wait_while("jobs", lambda: cluster.jobs(_podman.site.user), 15)
        records = _podman.site.base / "x" / "scrun"
        if records.exists():
            wait_while("records", lambda: [r for r in os.listdir(records) if r[0] != "@"], 5)
    except BaseException:
        _podman.run("rm", "--all", "--force", "--time", "1")
        raise
