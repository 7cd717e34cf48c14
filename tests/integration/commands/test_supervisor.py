"""`scrun supervisor`: list, stop, restart."""

import json
import os
import time
from functools import partial
from pathlib import Path

import pytest

from scrun.core.version import VERSION
from tests.conftest import MakeSite
from tests.harness.life import Life
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until, wait_while

by_shim = pytest.mark.by_shim
_UNTIL_TOLD = "trap 'exit 7' USR1; echo up; while :; do sleep 0.05; done"

_TWO = {"SCRUN_NTASKS": "2"}
"""A container of several tasks is not adopted."""


def running(site: Site, **how: object) -> Life:
    return site.shell(_UNTIL_TOLD, **how).created(60).start(60).says("up", 30)


def others(site: Site, old: int) -> list[int]:
    return [pid for pid in site.supervisors() if pid != old]


def told(life: Life) -> None:
    """Have it end, and delete it."""
    life.kill("USR1")
    life.ends(7, 60)


def test_list(make_site: MakeSite) -> None:
    site = make_site("local-user")
    assert site.must("supervisor", "list").split() == [
        "PID", "VERSION", "CONTAINERS", "MEMORY", "SINCE", "NAME",
    ]  # fmt: skip
    began = time.time()
    lives = [running(site) for _ in range(2)]
    [pid] = site.supervisors()
    [row] = json.loads(site.must("supervisor", "list", "--format", "json"))
    assert (row["pid"], row["version"]) == (pid, VERSION)
    assert sorted(row["containers"]) == sorted(life.id for life in lives)
    assert row["memory"] > 1 << 20
    assert row["name"].startswith("@user-")
    assert time.mktime(time.strptime(row["since"][:19], "%Y-%m-%dT%H:%M:%S")) > began - 5
    line = site.must("supervisor", "list", str(pid)).splitlines()[1].split()
    assert line[:3] == [str(pid), VERSION, "2"]
    for life in lives:
        told(life)


@pytest.mark.parametrize("kind", ["local-user", "slurm-user"])
def test_it_does_without_openssl(make_site: MakeSite, kind: str) -> None:
    """trio would bring that: a seventh of its memory."""
    site = make_site(kind)
    life = running(site)
    [pid] = site.supervisors()
    maps = Path(f"/proc/{pid}/maps").read_text()
    assert "python" in maps
    assert "libcrypto" not in maps
    told(life)


def test_stop(make_site: MakeSite) -> None:
    site = make_site("local-user")
    life = running(site)
    [pid] = site.supervisors()
    assert "--all" in site.fails("supervisor", "stop")
    assert "is not a running supervisor" in site.fails("supervisor", "stop", "1")
    site.must("supervisor", "stop", str(pid))
    wait_while("the stopped", lambda: pid in site.supervisors())
    life.ends(137, 60)
    site.settle(10)


def test_stop_in_time(make_site: MakeSite) -> None:
    """As a second SIGINT: what is left is described, and cleaned up by the next command."""
    site = make_site("slurm-user")
    life = running(site)
    began = time.monotonic()
    site.must("supervisor", "stop", "--all", "--time", "0")
    assert time.monotonic() - began < 10
    assert site.supervisors() == []
    life.wait(60)
    life.delete(60)
    site.settle(20)


@by_shim
def test_restart(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    lives = [running(site) for _ in range(2)]
    [old] = site.supervisors()
    assert site.must("supervisor", "restart") == ""
    wait_while("the old one", lambda: old in site.supervisors())
    [new] = others(site, old)
    [row] = json.loads(site.must("supervisor", "list", "--format", "json"))
    assert (row["pid"], len(row["containers"])) == (new, 2)
    assert [life.state()["status"] for life in lives] == ["running", "running"]
    assert site.must("exec", lives[0].id, "echo", "in it") == "in it\n"
    for life in lives:
        assert "this one goes on" in site.must("logs", "--messages", life.id)
        told(life)
    site.settle(20)


@by_shim
def test_restart_of_one_with_a_container_that_stays(make_site: MakeSite) -> None:
    """It goes on, and changes over the others when that has ended."""
    site = make_site("slurm-user")
    lasting, staying = running(site), running(site, environment=_TWO)
    [old] = site.supervisors()
    said = site.must("supervisor", "restart", str(old))
    assert f"{staying.id}: it was not made by one shim" in said
    assert lasting.id not in said
    later = running(site)
    rows = json.loads(site.must("supervisor", "list", "--format", "json"))
    assert {row["pid"]: row["containers"] for row in rows} == {
        old: sorted([lasting.id, staying.id]),
        others(site, old)[0]: [later.id],
    }
    assert site.must("exec", staying.id, "echo", "in it") == "in it\n"
    told(staying)
    wait_while("the old one", lambda: old in site.supervisors(), 20)
    assert lasting.state()["status"] == "running"
    told(lasting)
    told(later)
    site.settle(20)


@by_shim
def test_restart_by_force(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    lasting, staying = running(site), running(site, environment=_TWO)
    [old] = site.supervisors()
    site.must("supervisor", "restart", "--force")
    wait_while("the old one", lambda: old in site.supervisors())
    assert staying.wait(30) == 125
    assert staying.state()["status"] == "stopped"
    staying.delete(60)
    told(lasting)
    site.settle(20)


@by_shim
def test_programs_of_exec_that_would_end_do_so_before_a_restart(make_site: MakeSite) -> None:
    """At another user's terminal, for example after su, which a successor could not open."""
    site = make_site("slurm-user")
    life = running(site)
    [old] = site.supervisors()
    terminal, own = open_terminal()
    script = "echo in; sleep 3; exit 5"
    with site.popen("exec", "--tty", life.id, "sh", "-c", script, stdio=own) as program:
        os.close(own)
        terminal.read_until("in", 30)
        assert "a program of `exec` is running" in site.must("supervisor", "restart")
        assert program.wait(20) == 5
    terminal.close()
    wait_while("the old one", lambda: old in site.supervisors(), 20)
    assert life.state()["status"] == "running"
    told(life)
    site.settle(20)


@by_shim
def test_the_successor_is_killed_while_it_takes_over(make_site: MakeSite) -> None:
    """At any moment, and again: somebody has all that is needed."""
    site = make_site("slurm-user")
    lives = [running(site) for _ in range(3)]
    for pause in (0.0, 0.02, 0.05, 0.1, 0.15, 0.2):
        [old] = wait_until("one supervisor", site.supervisors, 20)
        with site.popen("supervisor", "restart") as restart:
            [new, *_] = wait_until("another", partial(others, site, old), 20)
            time.sleep(pause)
            signal_quietly(new)  # it detaches: the one that was seen may be its parent
            restart.wait(60)
        wait_until("only one", lambda: len(site.supervisors()) == 1, 30)
        assert [life.state()["status"] for life in lives] == ["running"] * 3
    for life in lives:
        told(life)
    site.settle(20)
