"""Containers of an oci.conf on this machine outlive their supervisor."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness.adoption import (
    COUNT,
    UNTIL_TOLD,
    adopted,
    end,
    kill_all_supervisors,
    kill_now_and_then,
    kill_supervisor,
    numbers,
    output,
)
from tests.harness.site import Site
from tests.harness.wait import wait_while

_KILL = """
RunTimeQuery="runc --root={state} state %j.%t"
RunTimeKill="runc --root={state} kill %j.%t TERM"
RunTimeDelete="runc --root={state} delete --force %j.%t"
"""
_RUN = f"""{_KILL}RunTimeRun="runc --root={{state}} run --bundle=%b %j.%t"
"""
_CREATE = f"""{_KILL}RunTimeCreate="runc --root={{state}} create --bundle=%b %j.%t"
RunTimeStart="runc --root={{state}} start %j.%t"
"""


@pytest.fixture(params=[_RUN, _CREATE], ids=["run", "create-start-query"])
def site(request: pytest.FixtureRequest, make_site: MakeSite, tmp_path: Path) -> Site:
    conf = tmp_path / "oci.conf"
    conf.write_text(request.param.format(state=tmp_path / "state"))
    return make_site("local-root", settings=f'[local]\noci_conf = "{conf}"\n')


def test_one_that_runs_goes_on(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created().start().says("up")
    for times in (1, 2):
        kill_supervisor(site)
        assert life.state()["status"] == "running"
        adopted(life, times=times)
    assert site.must("exec", life.id, "echo", "in it") == "in it\n"
    life.kill("USR1")
    assert life.wait(20) == 7
    assert life.state()["annotations"]["org.scrun.exit_status"] == "7"
    end(life)


def test_it_is_run_by_the_commands_of_its_time(site: Site, tmp_path: Path) -> None:
    """Those of its successor may be other ones, or wrong."""
    running = site.shell(UNTIL_TOLD).created().start().says("up")
    created = site.shell(UNTIL_TOLD).created()
    (tmp_path / "oci.conf").write_text('RunTimeRun="false"\nRunTimeDelete="true"\n')
    kill_supervisor(site)
    created.start().says("up")
    for life in (running, created):
        life.kill("USR1")
        assert life.wait(20) == 7
    end(running, created)


def test_start_at_the_same_moment(site: Site, dice: random.Random) -> None:
    """It is started once, whoever does it, and `start` does not fail."""
    for _ in range(8):
        life = site.shell(f"echo begun; {UNTIL_TOLD}").created()
        starting = site.popen("start", life.id, stdio=subprocess.DEVNULL)
        time.sleep(dice.uniform(0, 0.15))
        kill_all_supervisors(site)
        assert starting.wait(30) == 0
        life.says("up")
        life.kill("USR1")
        assert life.wait(20) == 7
        assert output(life) == b"begun\nup\n"
        life.delete(60)
    site.settle(20)


@pytest.mark.parametrize("status", [0, 9])
def test_one_that_ends_meanwhile_has_its_status(site: Site, status: int) -> None:
    """Nobody was there to hear of it."""
    waits = "echo up; until [ -e /gate ]; do sleep 0.01; done; echo bye"
    life = site.shell(f"{waits}; exit {status}").created().start().says("up")
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    (site.rootfs / "gate").touch()
    time.sleep(1)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(30) == status
    assert output(life) == b"up\nbye\n"
    end(life)


def test_no_byte_is_lost_or_doubled_however_often_it_dies(site: Site, dice: random.Random) -> None:
    life = site.shell(COUNT.format(200_000)).created().start()
    kill_now_and_then(site, dice, 4)
    assert life.wait(90) == 7
    assert output(life) == numbers(200_000)
    end(life)


def test_a_signal_that_ends_it(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created().start().says("up")
    kill_supervisor(site)
    adopted(life)
    life.kill("KILL")
    assert life.wait(20) == 137
    end(life)


def test_it_is_deleted_while_it_runs(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created().start().says("up")
    kill_supervisor(site)
    site.must("delete", "--force", life.id)
    assert life.wait(20) == 137
    site.settle(20)


def test_both_are_killed(site: Site) -> None:
    """Supervisor and keeper at once: all ends with them."""
    life = site.shell(UNTIL_TOLD).created().start().says("up")
    site.kill_supervisors()
    assert life.wait(20) == 125
    life.delete(60)
    site.settle(20)


def test_both_are_killed_and_its_removal_ends_nothing(make_site: MakeSite, tmp_path: Path) -> None:
    """The command in whose foreground it runs is told to end."""
    conf = tmp_path / "oci.conf"
    text = _RUN.replace("runc --root={state} delete --force %j.%t", "true")
    conf.write_text(text.format(state=tmp_path / "state"))
    site = make_site("local-root", settings=f'[local]\noci_conf = "{conf}"\n')
    script = "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done"
    life = site.shell(script).created().start().says("up")
    site.kill_supervisors()
    assert life.wait(20) == 125
    wait_while("runc", lambda: [one for one in site.processes() if "runc" in one.argv[0]], 20)
    life.delete(60)
    site.settle(20)
