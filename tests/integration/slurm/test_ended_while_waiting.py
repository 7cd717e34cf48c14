"""`run` in the foreground whose container is ended from outside while its job waits."""

import signal

import pytest

from tests.harness import cluster
from tests.harness.site import Site
from tests.harness.wait import wait_until


@pytest.mark.covers("scrun exit statuses: 128+n, killed before the start")
@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("kill", "c1", "TERM"), signal.SIGTERM),
        (("kill", "c1", "KILL"), signal.SIGKILL),
        (("delete", "--force", "c1"), signal.SIGKILL),
    ],
)
@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_its_status(site: Site, words: tuple[str, ...], number: int) -> None:
    bundle = site.bundle_of("true")
    with cluster.full(site.user):
        run = site.popen("run", "--bundle", bundle, "c1")
        try:
            wait_until("a job", lambda: cluster.jobs(site.user, site.base.name), 20)
            site.must(*words)
            assert run.wait(30) == 128 + number
        finally:
            run.kill()
            run.communicate()
