"""A pool on a slurmctld with the usual limit of requests (rl_enable: 30, and 2 a second)."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.sdiag import requests
from tests.harness.site import Site
from tests.harness.versions import slurm_version
from tests.integration.slurm.test_pool import IN_POOL, started

CONTAINERS, ROUNDS = 100, 3


def seconds(site: Site, name: str) -> float:
    """Run containers in a pool, eight at once, three times; return the best time."""
    bundle = site.bundle_of("true")

    def run(number: str) -> int:
        words = ("run", "--bundle", bundle, number)
        return site.run(*words, environment=IN_POOL, timeout=100).returncode

    started(site, "--cpus-per-task", "8")
    found = []
    with ThreadPoolExecutor(8) as threads:
        for turn in range(ROUNDS):
            began = time.monotonic()
            names = [f"{name}{turn}-{number}" for number in range(CONTAINERS)]
            assert {*threads.map(run, names)} == {0}
            found.append(time.monotonic() - began)
    site.must("pool", "stop", "mine", timeout=60)
    print(f"{name}: {found}")
    return min(found)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_hundred_take_no_longer_under_a_limit(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[slurm]\nlaunch = "shim"\n')
    free = seconds(site, "free")
    limit = "SlurmctldParameters=rl_enable\n" if slurm_version().limits_rate else ""
    with cluster.reconfigured(lambda text: f"{text}{limit}"), requests(site.user) as asked:
        limited = seconds(site, "limited")
    assert limited <= 1.2 * free
    assert sum(asked.values()) < 60  # those of the pool, and of `pool list` none
