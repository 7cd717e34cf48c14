"""Nobody takes over from a supervisor that was killed: `restore_timeout` of scrun.toml."""

import json
import os
import signal
import time

import pytest

from tests.conftest import MakeSite
from tests.harness.life import Life
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.by_shim

_RUNS = "echo up; while :; do sleep 0.05; done"
_PATIENCE = 3


def place(make_site: MakeSite) -> tuple[Site, Life]:
    site = make_site("slurm-user", settings=f"restore_timeout = {_PATIENCE}\n")
    return site, site.shell(_RUNS).created(60).start(60).says("up", 30)


def row(site: Site) -> dict[str, object]:
    [found] = json.loads(site.must("list", "--format", "json"))
    assert isinstance(found, dict)
    return found


def kill(site: Site) -> None:
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    wait_while("the killed", lambda: supervisor in site.supervisors())


def test_the_keeper_gives_up(make_site: MakeSite) -> None:
    """No successor starts: the lock of its name is a directory."""
    site, life = place(make_site)
    [lock] = site.root.glob("@user-*.lock")
    lock.unlink()
    lock.mkdir()
    began = time.monotonic()
    kill(site)
    assert life.state()["status"] == "running"
    assert row(site)["status"] == "running"
    assert life.wait(30) == 125
    assert time.monotonic() - began > _PATIENCE / 2
    lock.rmdir()
    said = f"no supervisor could take it over for {_PATIENCE}"
    assert life.state()["status"] == "stopped"
    for found in (life.state(), row(site)):
        assert found["status"] == "stopped"
        annotations = found["annotations"]
        assert isinstance(annotations, dict)
        assert annotations["org.scrun.message"].startswith(said)
        assert annotations["org.scrun.reason"] == "scrun-failure"
    wait_while("its job", site.jobs, 30)
    life.delete(60)
    site.settle(20)


def test_the_keeper_is_killed_as_well(make_site: MakeSite) -> None:
    """Then nothing holds anything: the end comes at once."""
    site, life = place(make_site)
    session = site.popen("exec", life.id, "sh", "-c", "echo up; sleep 600")
    assert session.stdout is not None
    assert session.stdout.readline() == b"up\n"
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGSTOP)  # else there would be another keeper after a second
    for keeper in [one.pid for one in site.processes() if one.is_keeper]:
        signal_quietly(keeper)
    kill(site)
    assert life.wait(30) == 125
    _, said = session.communicate(timeout=60)
    told = b"scrun: the supervisor was lost, and what this command ran ends: run it again\n"
    assert (session.returncode, said) == (125, told)
    state = life.state()
    assert (state["status"], state["annotations"]["org.scrun.message"]) == (
        "stopped", "the supervisor was lost",
    )  # fmt: skip
    assert row(site)["status"] == "stopped"
    wait_while("its job", site.jobs, 30)
    life.delete(60)
    site.settle(20)


def test_the_node_hears_of_nobody(make_site: MakeSite) -> None:
    """The keeper hangs: the shim ends the container, and the next supervisor learns of that."""
    site, life = place(make_site)
    [keeper] = [one.pid for one in site.processes() if one.is_keeper]

    def inside() -> list[int]:
        return [one.pid for one in site.processes() if one.argv[:2] == ("sh", "-c")]

    assert wait_until("it runs", inside)
    os.kill(keeper, signal.SIGSTOP)
    try:
        kill(site)
        assert inside()
        wait_while("its processes", inside, 20)
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert life.wait(60) not in (0, None)
    state = life.state()
    assert state["status"] == "stopped"
    assert state["annotations"]["org.scrun.reason"] == "scrun-failure"
    life.delete(60)
    site.settle(20)
