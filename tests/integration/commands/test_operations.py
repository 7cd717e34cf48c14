"""pause, resume, ps, events and update, on each engine."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.site import Site, with_controllers
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise commands of crun and runc")

TWO = pytest.mark.parametrize("site", ["local-root", "slurm-user"], indirect=True)


@pytest.fixture
def running(site: Site) -> Life:
    """A container that counts, and ends at once when it is told to."""
    script = "trap 'exit 0' TERM; while :; do echo tick; sleep 0.05; done"
    life = site.shell(script).created()
    life.start().says("tick")
    return life


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun pause, resume")
def test_pause_and_resume(site: Site, running: Life) -> None:
    site.must("pause", running.id)
    assert running.status == "paused"
    assert "is already paused" in site.fails("pause", running.id)
    assert "it is paused; resume it" in site.fails("exec", running.id, "true")
    wait_until("it is quiet", lambda: _is_quiet(running))
    before = written(running)
    site.must("resume", running.id)
    assert running.status == "running"
    wait_until("it goes on", lambda: written(running) > before)
    assert "is not paused" in site.fails("resume", running.id)


def written(life: Life) -> int:
    assert life.stdout is not None
    return len(life.stdout.so_far)


def _is_quiet(life: Life) -> bool:
    before = written(life)
    time.sleep(0.2)
    return written(life) == before


@pytest.mark.both_engines
@pytest.mark.covers("scrun pause, resume")
@TWO
def test_a_paused_one_can_be_killed(site: Site, running: Life) -> None:
    site.must("pause", running.id)
    site.must("kill", running.id, "KILL")
    assert running.wait() == 137


@pytest.mark.covers("scrun pause, resume")
@TWO
def test_a_paused_one_can_be_deleted(site: Site, running: Life) -> None:
    site.must("pause", running.id)
    site.must("delete", "--force", running.id)
    assert site.must("list", "--quiet") == ""


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun ps")
def test_ps(site: Site, running: Life) -> None:
    pids = json.loads(site.must("ps", "--format", "json", running.id))
    assert pids
    # the test cluster's nodes are this host
    ours = {process.pid for process in site.processes()}
    assert ours & set(pids)
    table = site.must("ps", running.id).splitlines()
    assert "PID" in table[0].split()
    assert any("trap 'exit 0' TERM" in line for line in table[1:])


@pytest.mark.covers("scrun ps")
@TWO
def test_ps_with_options(site: Site, running: Life) -> None:
    table = site.must("ps", running.id, "-e", "-o", "pid,args").splitlines()
    assert table[0].split() == ["PID", "COMMAND"]
    assert 2 <= len(table) <= 4
    assert "ps on" in site.fails("ps", running.id, "--nonsense")
    assert "no column PID" in site.fails("ps", running.id, "-e", "-o", "args")


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun events")
def test_events(site: Site, running: Life) -> None:
    event = json.loads(site.must("events", "--stats", running.id))
    assert (event["type"], event["id"]) == ("stats", running.id)
    assert event["data"]["memory"]["usage"]["usage"] > 100_000
    assert event["data"]["pids"]["current"] >= 1
    assert event["data"]["cpu"]["usage"].keys() == {"total", "kernel", "user"}


@pytest.mark.covers("scrun events")
@TWO
def test_events_go_on_until_the_end(site: Site, running: Life) -> None:
    with site.popen("events", "--interval", "0.1", running.id) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert json.loads(process.stdout.readline())["type"] == "stats"
        site.must("kill", running.id, "TERM")
        assert running.wait() == 0
        process.stdout.read()
        assert process.wait(20) == 0
    assert "is not a time" in site.fails("events", "--interval", "never", running.id)


@pytest.mark.parametrize(
    "words",
    ["events --interval 1h", "stats --watch --interval 1", "logs --follow --messages"],
    ids=lambda words: words.split()[0],
)
@TWO
def test_they_end_when_nobody_reads_any_more(site: Site, running: Life, words: str) -> None:
    with site.popen(*words.split(), running.id) as process:
        assert process.stdout is not None
        if "logs" not in words:
            assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 0
    assert running.status == "running"


@pytest.mark.covers("scrun update", "podman update", "docker update")
@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_update_on_slurm(site: Site, running: Life) -> None:
    assert "memory.limit=1073741824 cannot be changed: Slurm can only" in site.fails(
        "update", "--memory", "1g", running.id
    )
    site.must("update", "--time-limit", "5", running.id)
    job = running.job_id
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%l"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout == "5:00\n"
    assert "was not changed" in site.fails("update", "--time-limit", "60", running.id)
    assert "expected" in site.fails("update", "--time-limit", "soon", running.id)
    assert "needs a limit to change" in site.fails("update", running.id)
    # what docker sends for flags that nobody gave
    nothing = json.dumps({"cpu": {"shares": 0}, "memory": {"limit": 0}, "blockIO": {"weight": 0}})
    site.run("update", "--resources", "-", running.id, input=nothing, check=True)


@pytest.mark.covers("scrun update")
@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_update_here_without_cgroups(site: Site, running: Life) -> None:
    assert "memory.limit" in site.fails("update", "--memory", "1g", running.id)
    assert "have no time limit" in site.fails("update", "--time-limit", "5", running.id)


@pytest.mark.covers("scrun update")
def test_update_back_to_what_config_json_says(make_site: MakeSite) -> None:
    site = make_site("local-root", settings='[local]\nruntime = "runc"\n')
    config = site.config("sleep", "600")
    config["linux"]["resources"] = {"pids": {"limit": 100}}
    site.command = [*with_controllers("pids"), *site.command]
    name = site.base.name  # groups of killed runs are there, too
    site.must("run", "--detach", "--bundle", str(site.bundle(config)), name)
    [supervisor] = site.supervisors()
    groups = os.walk(f"/proc/{supervisor}/root/sys/fs/cgroup")
    [file] = [
        path
        for path in (Path(group, "pids.max") for group, *_ in groups if group.endswith(name))
        if path.exists()
    ]
    for limit in ("100", "50", "100"):
        site.must("update", "--pids-limit", limit, name)
        assert file.read_text() == f"{limit}\n"
    site.must("delete", "--force", name)


@pytest.mark.covers("scrun pause, resume")
@TWO
@pytest.mark.parametrize("command", ["pause", *map(nightly, ("resume", "ps", "events", "stats"))])
def test_where_nothing_runs(site: Site, command: str) -> None:
    life = site.life("true").created()
    assert "is created, not running" in site.fails(command, life.id)
