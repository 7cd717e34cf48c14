"""A container while slurmctld is away."""

import os
import time

import pytest

from tests.harness import cluster
from tests.harness.nightly import often
from tests.harness.site import Site, whole_life

pytestmark = pytest.mark.covers("promise the controller is away for a minute")

AWAY = often(20, 60)


@pytest.mark.covers("slurm-scrun slurmctld down: 22 s for an unknown id")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_controller_stopped_for_a_minute(site: Site) -> None:
    """One container is deleted meanwhile, others go on.

    In one test, because a slurmstepd whose step ends meanwhile tells slurmctld after another
    60 s: until then the job that was given back is COMPLETING.
    """
    deleted = site.shell("echo up; sleep 600").created().start().says("up")
    talking = site.life("cat", stdin="pipe").created().start()
    created = site.life("echo", "later").created()
    ending = site.shell("echo up; read line; exit 7", stdin="pipe").created().start()
    ending.says("up\n")  # a step that is not there yet would wait for slurmctld
    os.write(talking.stdin, b"before\n")
    talking.says("before\n")

    def state_at_once(status: str) -> None:
        began = time.monotonic()
        assert talking.status == status
        assert time.monotonic() - began < 1

    with cluster.without():
        until = time.monotonic() + AWAY
        began = time.monotonic()
        site.run("kill", deleted.id, "KILL", timeout=60)  # it may say that nobody can deliver it
        deleted.run("delete", "--force", timeout=60)
        assert time.monotonic() - began < 45
        assert deleted.wait(60) != 0
        state_at_once("running")
        os.write(talking.stdin, b"during\n")
        talking.says("during\n")
        began = time.monotonic()
        assert "does not exist" in site.fails("state", "nobody")
        assert time.monotonic() - began < 1
        os.write(ending.stdin, b"\n")
        while time.monotonic() < until:
            time.sleep(5)
            state_at_once("running")
            assert created.status == "created"
            assert not talking.ended
    state_at_once("running")
    os.write(talking.stdin, b"after\n")
    talking.says("after\n")
    talking.close_stdin()
    assert talking.wait(60) == 0
    assert talking.errors() == ""
    assert created.start().wait(60) == 0
    assert created.output() == "later\n"
    assert ending.wait(60) == 7, ending.describe()
    for life in (talking, created, ending):
        life.delete()
    # the deleted one's job is given back as soon as there is somebody to ask
    site.settle(60, completing=80)
    assert whole_life(site) == 0
