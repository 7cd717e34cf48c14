"""Two versions of scrun: the newer one takes over, the older one leaves it alone."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.core.version import VERSION
from tests import CHECKOUT
from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import UNTIL_TOLD, member, output, pending
from tests.harness.installation import Installation
from tests.harness.life import Life
from tests.harness.site import Site, scrun_binary
from tests.harness.wait import wait_until, wait_while

pytestmark = [pytest.mark.by_shim, pytest.mark.timeout(600)]

_OLD = "0.0.1"
_FROM = os.environ.get("SCRUN_UPGRADE_FROM")
_MANY = 50 if _FROM else 8


def have_version(installation: Installation, checkout: Path, version: str) -> None:
    """As `pip install` does: what was there is removed, and other files take its place."""
    package = installation.site / "scrun"
    shutil.rmtree(package)
    leave_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(checkout / "scrun", package, ignore=leave_out)
    file = package / "core" / "version.py"
    file.write_text(re.sub(r'(?m)^VERSION = ".*"$', f'VERSION = "{version}"', file.read_text()))


@pytest.fixture
def older(tmp_path: Path) -> Iterator[Installation]:
    """An older scrun: the commit that SCRUN_UPGRADE_FROM names, or else this one."""
    checkout = CHECKOUT
    if _FROM:
        checkout = tmp_path
        words = ["git", "-C", str(CHECKOUT), "archive", _FROM, "scrun", "supervisor"]
        files = subprocess.run(words, check=True, stdout=subprocess.PIPE, timeout=60).stdout
        subprocess.run(["tar", "-x", "-C", tmp_path], check=True, input=files, timeout=60)
    installation = Installation()
    installation.own_copies(CHECKOUT)
    have_version(installation, checkout, _OLD)
    yield installation
    installation.close()


def running(site: Site, count: int) -> list[Life]:
    lives = [site.shell(UNTIL_TOLD).created(60) for _ in range(count)]
    return [life.start(60).says("up", 30) for life in lives]


def versions(site: Site) -> dict[str, int]:
    """How many containers the supervisors of each version have."""
    rows = json.loads(site.must("supervisor", "list", "--format", "json"))
    return {row["version"]: len(row["containers"]) for row in rows}


def end(lives: list[Life]) -> None:
    for life in lives:
        life.kill("USR1")
    assert [life.wait(30) for life in lives] == [7] * len(lives)
    for life in lives:
        life.delete(60)


def test_a_newer_one_takes_over(make_site: MakeSite, older: Installation) -> None:
    """With its first container; until then its commands work on those of the older one."""
    site = make_site("slurm-user", binary=older.binary)
    lives = running(site, 5)
    staying = (
        site.shell(UNTIL_TOLD, environment={"SCRUN_NTASKS": "2"})
        .created(60)
        .start(60)
        .says("up", 30)
    )
    site.command[0] = scrun_binary()
    assert versions(site) == {_OLD: 6}
    assert [life.state()["status"] for life in lives] == ["running"] * 5
    assert site.must("exec", lives[0].id, "echo", "in it") == "in it\n"
    end([lives.pop()])
    lives += running(site, 1)
    assert versions(site) == {_OLD: 5, VERSION: 1}
    end([staying])
    wait_while("the old one", lambda: _OLD in versions(site), 30)
    assert versions(site) == {VERSION: 5}
    assert [life.state()["status"] for life in lives] == ["running"] * 5
    assert site.must("exec", lives[0].id, "echo", "in it") == "in it\n"
    end(lives)
    site.settle(20)


def test_a_newer_one_takes_over_what_waits_for_its_job(
    make_site: MakeSite, older: Installation
) -> None:
    site = make_site("slurm-user", binary=older.binary, create_timeout=0.5)
    with cluster.full(site.user):
        life = pending(site)
        [job] = site.jobs()
        assert versions(site) == {_OLD: 1}
        site.command[0] = scrun_binary()
        another = pending(site)
        wait_until("the newer one", lambda: versions(site) == {VERSION: 2}, 30)
        assert job.split()[0] in [line.split()[0] for line in site.jobs()]
    for one in (life, another):
        assert one.wait(60) == 7
        assert output(one) == b"ran\n"
        one.delete(60)
    site.settle(20)


def test_many_and_a_pod(make_site: MakeSite, older: Installation) -> None:
    """The newer one's commands work on all of them, and none ends before it is told to."""
    site = make_site("slurm-user", binary=older.binary)
    lives = running(site, _MANY)
    pod = [member(site).says("up", 30) for _ in range(2)]
    [supervisor] = site.supervisors()
    site.command[0] = scrun_binary()
    [(old, count)] = versions(site).items()
    assert old != VERSION
    assert count == _MANY + 2
    new = running(site, 1)
    assert sum(versions(site).values()) == _MANY + 3
    pod.append(member(site).says("up", 30))
    assert [life.state()["status"] for life in lives + pod] == ["running"] * (_MANY + 3)
    for life in (lives[0], lives[-1], *pod):
        assert site.must("exec", life.id, "echo", "in it") == "in it\n"
    assert "salloc: Granted job" in site.must("logs", "--messages", lives[1].id)
    end(lives)
    end(pod)
    # 0.1.0 stays for its idle_timeout, 20 s, which `supervisor list` begins anew
    wait_while("the old one", lambda: supervisor in site.supervisors(), 60)
    assert versions(site) == {VERSION: 1}
    end(new)
    site.settle(20)


def test_an_older_one_touches_nothing(make_site: MakeSite, older: Installation) -> None:
    site = make_site("slurm-user")
    lives = running(site, 1)
    before = site.must("supervisor", "list")
    site.command[0] = older.binary
    said = site.fails("supervisor", "restart")
    assert f"belongs to scrun {VERSION}, and this is {_OLD}" in said
    assert site.must("supervisor", "list").split()[:-3] == before.split()[:-3]
    lives += running(site, 1)
    assert versions(site) == {_OLD: 1, VERSION: 1}
    assert [life.state()["status"] for life in lives] == ["running"] * 2
    end(lives)
    site.settle(20)


def test_it_is_installed_in_place(make_site: MakeSite, older: Installation) -> None:
    """Under a supervisor that runs; the next one is the newer one, and back again it is not."""
    site = make_site("slurm-user", binary=older.binary)
    lives = running(site, 3)
    have_version(older, CHECKOUT, VERSION)
    assert [life.state()["status"] for life in lives] == ["running"] * 3
    assert site.must("exec", lives[0].id, "echo", "in it") == "in it\n"
    end([lives.pop()])
    assert versions(site) == {_OLD: 2}
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    wait_until("the newer one", lambda: versions(site) == {VERSION: 2}, 30)
    have_version(older, CHECKOUT, _OLD)
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    refusal = f"scrun {_OLD} cannot take over from a supervisor of scrun {VERSION}"
    wait_until("a refusal", lambda: refusal in site.must("logs", "--supervisor"), 30)
    assert [life.state()["status"] for life in lives] == ["running"] * 2
    have_version(older, CHECKOUT, VERSION)
    wait_until("the newer one", lambda: versions(site).get(VERSION) == 2, 60)
    assert [life.state()["status"] for life in lives] == ["running"] * 2
    end(lives)
    site.settle(20)
