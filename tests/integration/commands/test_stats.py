"""`scrun stats`: containers that run, wherever that is."""

import json
import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from scrun.commands.stats import HEAD
from tests.conftest import MakeSite
from tests.harness.adoption import UNTIL_TOLD, adopted, adoptions, kill_supervisor, told
from tests.harness.load import MIB
from tests.harness.site import Site
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("scrun stats")

_BUSY = "while :; do :; done"
_HOLDS = f"dd if=/dev/zero bs={100 * MIB} count=1 2>/dev/null | sleep 1000"
_PLACES = pytest.mark.parametrize("place", ["local-root", "slurm-user"])


_MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.both_engines
@pytest.mark.every_launch
@_PLACES
def test_what_they_use(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    site.environment["SCRUN_MEM_PER_NODE"] = "500M"
    assert site.must("stats").split() == [*HEAD]
    assert json.loads(site.must("stats", "--format", "json")) == []
    site.shell(_BUSY, container="busy").created().start()
    site.shell(_HOLDS, container="holds").created().start()
    site.life("true", container="waits").created()
    wait_until("both run", lambda: len(rows(site)) == 2, 20)
    wait_until("it has its memory", lambda: rows(site)["holds"]["memory"] > 100 * MIB, 20)
    pids = json.loads(site.must("ps", "--format", "json", "busy"))
    [pid] = [pid for pid in pids if used(pid) > 0]
    before = used(pid)
    found = rows(site, "--interval", "2")
    busy, holds = found["busy"], found["holds"]
    after = used(pid)
    assert before <= busy["cpu_seconds"] <= after
    assert 0 < busy["cpu_percent"] <= min(110, 110 * (after - before) / 2)  # within two seconds
    assert holds["memory"] / MIB == pytest.approx(100, rel=0.05)
    assert holds["cpu_percent"] < 20
    assert (busy["threads"], holds["threads"]) == (1, 3)
    assert holds["limit"] == (_MACHINE if place == "local-root" else 500 * MIB)
    _, line = site.must("stats", "holds").splitlines()
    assert re.fullmatch(r"holds +[0-9.]+ +0:0[0-9.]+ +10[0-9]\.[0-9]MiB +\S+ +\S+ +3", line)


def rows(site: Site, *words: str) -> dict[str, dict[str, float]]:
    found = json.loads(site.must("stats", "--format", "json", *(words or ("--interval", "0.1"))))
    return {row["id"]: row for row in found}


@_PLACES
def test_it_goes_on_until_they_have_ended(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    life = site.shell("trap 'exit 0' TERM; while :; do sleep 0.1; done", container="one")
    life.created().start()
    words = ("--watch", "--format", "json", "--interval", "0.1", "one")
    wait_until("it runs", lambda: site.run("stats", "one").returncode == 0, 20)
    with site.popen("stats", *words) as process:
        assert process.stdout is not None
        for _ in range(3):
            [row] = json.loads(process.stdout.readline())
            assert (row["id"], row["limit"]) == ("one", _MACHINE)  # it asked for none
        site.must("kill", "one", "TERM")
        assert life.wait() == 0
        assert json.loads(process.stdout.read().splitlines()[-1]) == []
        assert process.wait(20) == 0
    assert "one" in site.fails("stats", "one")


def test_a_supervisor_that_does_not_answer(make_site: MakeSite) -> None:
    site = make_site("local-root")
    for name in ("one", "two"):
        site.life("sleep", "1000", container=name).created().start()
    supervisor = site.stopped_supervisor()
    try:
        done = site.run("stats", "one", "two", timeout=30)
        assert done.returncode == 1
        silent = "the supervisor: does not answer in time; try again"
        assert done.stderr.count(silent) == 2
        done = site.run("top", "--once", timeout=40)
        assert (done.returncode, done.stderr) == (0, f"scrun: {silent}\n")  # of its pools' nodes
        assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["one", "two"]
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert [*rows(site)] == ["one", "two"]


@pytest.mark.covers("scrun metrics")
@_PLACES
def test_metrics_while_a_supervisor_is_replaced(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    life = site.shell(UNTIL_TOLD, container="one").created().start().says("up")
    engine = place.partition("-")[0]
    says = f'scrun_containers{{engine="{engine}",reason="",state="running"}} 1.0'
    with site.popen("metrics", "--listen", "127.0.0.1:0") as server:
        assert server.stdout is not None
        url = server.stdout.readline().decode().strip()
        kill_supervisor(site)
        scrapes = 0
        while scrapes < 3 or adoptions(life) == 0:
            with urllib.request.urlopen(url, timeout=1) as answer:
                assert says in answer.read().decode().splitlines()
            scrapes += 1
        server.terminate()
    adopted(life)
    found = site.must("metrics").splitlines()
    assert says in found
    assert "scrun_start_latency_seconds_gcount 1.0" in found
    told(life)
