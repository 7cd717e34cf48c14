"""A supervisor that gets SIGTERM leaves its containers to a successor; SIGINT ends them."""

import json
import os
import signal
import time
from contextlib import suppress

import pytest

from tests.conftest import MakeSite
from tests.harness.adoption import UNTIL_TOLD, adopted, end
from tests.harness.life import Life
from tests.harness.nightly import nightly, often
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.by_shim
PLACES = pytest.mark.parametrize("place", ["slurm-user", "local-user"])


def running(site: Site, **how: object) -> Life:
    return site.shell(UNTIL_TOLD, **how).created(60).start(60).says("up", 30)


def keepers(site: Site) -> list[int]:
    return [one.pid for one in site.processes() if "scrun-keeper" in one.argv]


def told(site: Site, *numbers: int) -> None:
    """Send signals to the supervisor, and wait for its end, which nobody holds up."""
    [supervisor] = wait_until("one supervisor", site.supervisors, 20)
    os.kill(supervisor, numbers[0])
    for number in numbers[1:]:
        with suppress(ProcessLookupError):  # it may be gone already
            os.kill(supervisor, number)
    wait_while("the old one", lambda: supervisor in site.supervisors(), 4.5)


def go_on(*lives: Life, times: int = 1) -> None:
    """Hold that they were adopted, and have statuses of their own."""
    for life in lives:
        adopted(life, times=times)
        assert life.state()["status"] == "running"
        life.kill("USR1")
        assert life.wait(30) == 7
        assert life.state()["annotations"]["org.scrun.exit_status"] == "7"
    end(*lives)


@pytest.mark.both_engines
@PLACES
@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGTERM,),
        nightly((signal.SIGHUP,)),
        (signal.SIGTERM, signal.SIGHUP),
        nightly((signal.SIGTERM,) * 2),
    ],
)
def test_its_containers_go_on(make_site: MakeSite, place: str, numbers: tuple[int, ...]) -> None:
    site = make_site(place)
    life, created = running(site), site.shell(UNTIL_TOLD).created(60)
    told(site, *numbers)
    assert (life.state()["status"], created.state()["status"]) == ("running", "created")
    go_on(life, created.start(60).says("up", 30))


def test_only_those_end_that_no_successor_finds(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    life, alone = running(site), running(site, environment={"SCRUN_NTASKS": "2"})
    told(site, signal.SIGTERM)
    assert alone.wait(30) == 125
    state = alone.state()
    assert state["status"] == "stopped"
    assert state["annotations"]["org.scrun.message"] == "the supervisor was told to stop"
    alone.delete(60)
    go_on(life)


@PLACES
@pytest.mark.parametrize("first", ["the supervisor", "its keeper"])
def test_the_end_of_a_service(make_site: MakeSite, place: str, first: str) -> None:
    """That sends SIGTERM to all at once: to whom it comes first does not matter."""
    site = make_site(place)
    life = running(site)
    for times in (1, 2):
        [keeper] = wait_until("the keeper", lambda: keepers(site), 20)
        if first == "its keeper":
            os.kill(keeper, signal.SIGTERM)
        told(site, signal.SIGTERM)
        if first == "the supervisor":
            with suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGTERM)  # it calls a successor, or has done so
        adopted(life, times=times)
    go_on(life, times=2)


def test_what_was_killed_is_killed(make_site: MakeSite) -> None:
    """SIGKILL is answered before it is sent."""
    site = make_site("local-user")
    for _ in range(often(2, 8)):
        life = running(site)
        [supervisor] = wait_until("one supervisor", site.supervisors, 20)
        os.kill(supervisor, signal.SIGSTOP)
        killing = site.popen("kill", life.id, "KILL")
        time.sleep(0.5)
        for number in (signal.SIGTERM, signal.SIGCONT):
            os.kill(supervisor, number)
        killing.communicate(timeout=30)
        assert killing.returncode == 0
        life.ends(137, 60)
    site.settle(20)


@pytest.mark.parametrize("how", ["SIGTERM", "restart"])
def test_one_with_a_reaper_goes_on(make_site: MakeSite, how: str) -> None:
    """That was started to die with the supervisor, and has taken that back."""
    site = make_site("local-user")
    bundle = site.bundle_of(
        "sh", "-c", "trap 'echo bye; exit 7' USR1; while :; do sleep 0.05; done"
    )
    site.must("run", "--detach", "--bundle", bundle, "one")
    [old] = site.supervisors()
    if how == "restart":
        site.must("supervisor", "restart")
    else:
        os.kill(old, signal.SIGTERM)
    wait_while("the old one", lambda: old in site.supervisors(), 20)
    wait_until("it is adopted", lambda: "goes on" in site.must("logs", "--messages", "one"), 20)
    following = site.popen("logs", "--follow", "one")
    site.must("kill", "one", "USR1")
    assert following.communicate(timeout=20)[0].decode() == "bye\n"
    assert json.loads(site.must("state", "one"))["annotations"]["org.scrun.exit_status"] == "7"
    site.must("delete", "--force", "one")
    site.settle(20)


@PLACES
def test_sigint_ends_them(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    life = running(site)
    told(site, signal.SIGINT)
    assert life.wait(30) == (125 if place == "slurm-user" else 137)
    state = life.state()
    assert state["status"] == "stopped"
    assert state["annotations"]["org.scrun.message"] == "the supervisor was told to stop"
    end(life)
