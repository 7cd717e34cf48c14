"""A container while slurmctld is away."""

import os
import time

import pytest

from tests.harness import cluster
from tests.harness.site import Site, whole_life

pytestmark = pytest.mark.covers("promise the controller is away for a minute")

AWAY = 60.0


@pytest.mark.covers("slurm-scrun slurmctld down: 22 s for an unknown id")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_controller_stopped_for_a_minute(site: Site) -> None:
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

    with cluster.without_controller():
        until = time.monotonic() + AWAY
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
    site.settle()
    assert whole_life(site) == 0


@pytest.mark.timeout(200)
@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_delete_while_the_controller_is_away(site: Site) -> None:
    life = site.shell("echo up; sleep 600").created().start().says("up")
    with cluster.without_controller():
        began = time.monotonic()
        site.run("kill", life.id, "KILL", timeout=60)  # it may say that nobody can deliver it now
        life.run("delete", "--force", timeout=60)
        assert time.monotonic() - began < 45
        assert life.wait(60) != 0
    # The job is given back as soon as there is somebody to ask. A slurmstepd whose step has ended
    # meanwhile, as by a shim, tells slurmctld after another 60 s.
    site.settle(60, completing=80)
