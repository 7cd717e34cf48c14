"""Idle containers cost nothing, and an idle supervisor ends."""

import time

import pytest

from tests.conftest import MakeSite
from tests.harness.processes import voluntary_switches
from tests.harness.site import Site, whole_life
from tests.harness.wait import wait_while

pytestmark = pytest.mark.covers("promise nothing wakes up while containers are idle")

QUIET = 10.0

LAST_WORD = 22.0
"""Until then threads that served the starts end, and connections show that nothing was left out
(`nodes.link.Sealing.quiet`)."""


@pytest.mark.timeout(180)
def test_idle_containers_cause_no_wake_up(make_site: MakeSite) -> None:
    pids = []
    for place in ("slurm-user", "local-root"):
        site = make_site(place)
        lives = [site.life("sleep", "600") for _ in range(10)]
        for life in lives:
            life.created(60).start()
        pids += [life.anchor for life in lives] + site.supervisors()
    assert len(pids) == 22
    time.sleep(LAST_WORD)
    before = {pid: voluntary_switches(pid) for pid in pids}
    time.sleep(QUIET)
    assert {pid: voluntary_switches(pid) for pid in pids} == before


@pytest.mark.both_engines
@pytest.mark.parametrize("place", ["slurm-user", "local-root"])
def test_idle_supervisor_ends(make_site: MakeSite, place: str) -> None:
    site: Site = make_site(place, settings="idle_timeout = 1\n")
    assert whole_life(site) == 0
    assert site.supervisors()
    wait_while("the supervisor", site.processes, 10)
    assert not [entry for entry in site.root.iterdir() if entry.name[0] != "@"]
    assert not [entry for entry in site.root.iterdir() if entry.is_socket()]
    assert whole_life(site) == 0
