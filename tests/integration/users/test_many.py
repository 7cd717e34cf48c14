"""Many lives on Slurm, and lives whose anchor or supervisor is killed at a random moment."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.nightly import nightly, often
from tests.harness.processes import signal_quietly
from tests.harness.site import Site, whole_life
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("promise many lives; anchors and supervisors are killed")

on_slurm = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
LONG = pytest.mark.timeout(400)
LIVES = int(os.environ.get("SCRUN_LIVES") or 10)
"""How many one after the other; 200 for a long run."""


@pytest.mark.covers("slurm-scrun the anchor goes on for ever after the end")
@LONG
@on_slurm
def test_many_lives_one_after_the_other(site: Site) -> None:
    assert [whole_life(site) for _ in range(LIVES)] == [0] * LIVES
    site.settle()


@pytest.mark.covers("slurm-scrun stage_in sometimes skipped; 86 of 100 at once run")
@LONG
@on_slurm
def test_many_lives_at_once(site: Site) -> None:
    lives = [site.shell(f"exit {number}") for number in range(often(40, 100))]
    with ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda life: life.created(120), lives))
        list(threads.map(lambda life: life.start(120), lives))
        statuses = list(threads.map(lambda life: life.wait(120), lives))
        list(threads.map(lambda life: life.delete(120), lives))
    assert statuses == list(range(len(lives)))
    site.settle()


@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_20_lives_at_once_on_this_machine(site: Site) -> None:
    with ThreadPoolExecutor(20) as threads:
        assert list(threads.map(lambda _: whole_life(site), range(20))) == [0] * 20
    site.settle()


@pytest.mark.covers("promise simultaneous creates start one supervisor")
@on_slurm
def test_many_creates_start_one_supervisor(site: Site, make_site: MakeSite) -> None:
    fresh = make_site("slurm-user")
    lives = [fresh.life("true") for _ in range(20)]
    for life in lives:
        life.created(60)
    assert len(fresh.supervisors()) == 1
    with ThreadPoolExecutor(20) as threads:
        assert set(threads.map(lambda life: life.start(60).wait(60), lives)) == {0}


def has_noticed_nothing(witness: Life) -> None:
    os.write(witness.stdin, b"nothing noticed\n")
    witness.close_stdin()
    assert witness.output() == "nothing noticed\n"
    assert witness.wait() == 0


def _begin_and_start(life: Life) -> None:
    """Go on with a life as far as its killer lets it come."""
    if life.create_status(60) == 0:
        life.run("start")


@pytest.mark.covers("slurm-scrun any signal kills the anchor, job and container go on")
@pytest.mark.covers("slurm-scrun after the anchor's death the job stays")
@LONG
@on_slurm
def test_anchors_killed_at_random_moments(
    site: Site, make_site: MakeSite, dice: random.Random
) -> None:
    witness = make_site("slurm-user").life("cat", stdin="pipe").created().start()
    lives = [site.shell("sleep 600") for _ in range(often(20, 40))]

    def kill(life: Life) -> None:
        moment = time.monotonic() + dice.random() * 6
        wait_until("a pid file", life.pid_file.exists, 60)
        time.sleep(max(0, moment - time.monotonic()))
        signal_quietly(int(life.pid_file.read_text()))

    with ThreadPoolExecutor(len(lives) * 2) as threads:
        done = [threads.submit(_begin_and_start, life) for life in lives]
        done += [threads.submit(kill, life) for life in lives]
        for future in done:
            future.result(120)
    for life in lives:
        if life.create_status() == 0:
            assert life.wait(10) == 137
        assert life.site.run("delete", "--force", life.id).returncode == 0
    site.settle(5)
    has_noticed_nothing(witness)


@LONG
@pytest.mark.parametrize("moment", [nightly(0.05), 1.0])
@pytest.mark.parametrize("place", ["slurm-user", "local-root"])
def test_supervisor_killed_at_a_random_moment(
    make_site: MakeSite, dice: random.Random, place: str, moment: float
) -> None:
    harmed, other = make_site(place), make_site(place)
    witness = other.life("cat", stdin="pipe").created().start()
    lives = [harmed.shell("sleep 600") for _ in range(10)]

    def kill() -> None:
        [supervisor] = wait_until("a supervisor", harmed.supervisors)
        time.sleep(dice.random() * 2 * moment)
        signal_quietly(supervisor)

    with ThreadPoolExecutor(len(lives) + 1) as threads:
        done = [threads.submit(_begin_and_start, life) for life in lives]
        done.append(threads.submit(kill))
        for future in done:
            future.result(120)
    # another one has adopted some, and a create that came too late found the next one
    harmed.kill_supervisors()
    for life in lives:
        if life.create_status() == 0:
            assert life.wait(10) == life.without_supervisor
            assert life.status in ("stopped", "gone")
        assert harmed.run("delete", "--force", life.id).returncode == 0
    harmed.settle(5)
    has_noticed_nothing(witness)


def test_supervisor_killed_while_the_job_waits(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    with cluster.full(site.user):
        life = site.life("true")
        wait_until("the job waits", lambda: "PENDING" in str(site.jobs()))
        [supervisor] = site.supervisors()
        os.kill(supervisor, 9)
        wait_while("the job", site.jobs, 5)
        assert "supervisor died" in life.refused()
        assert site.run("delete", "--force", life.id).returncode == 0
        site.settle()
    assert whole_life(site) == 0


@pytest.mark.parametrize("place", ["slurm-user", "local-root"])
def test_after_the_supervisor_died_the_record_answers(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    life = site.life("sleep", "600").created().start()
    site.kill_supervisors()
    assert life.wait(10) == life.without_supervisor
    state = life.state()
    assert state["status"] == "stopped"
    assert state["pid"] == 0
    assert "not running" in site.fails("kill", life.id, "TERM")
    life.delete()
    assert life.status == "gone"
    site.settle(5)
    assert whole_life(site) == 0
