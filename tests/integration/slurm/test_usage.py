"""What a container has used: in its state, and in a line at the end of `run`."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness.adoption import BY_SRUN, kill_supervisor
from tests.harness.load import MIB, TELL, fill, spin
from tests.harness.site import Site
from tests.harness.wait import wait_until

pytestmark = pytest.mark.shares_sites

_LOAD = f"{spin(2)}; {fill(200)}; {TELL}"
_PLACES = pytest.mark.parametrize("place", ["local-root", "local-user", "slurm-user"])


def annotations(site: Site, container: str) -> dict[str, str]:
    found = json.loads(site.must("state", container))["annotations"]
    assert isinstance(found, dict)
    return found


def taken(site: Site, container: str) -> dict[str, Any]:
    """Return what a container has used, and delete it."""
    found = json.loads(annotations(site, container)["org.scrun.usage"])
    assert isinstance(found, dict)
    site.must("delete", container)
    return found


def as_told(usage: dict[str, Any], hundredths: str, mib: int = 200) -> None:
    """Hold that it is what /proc has said in the container."""
    assert usage["user"] + usage["system"] == pytest.approx(int(hundredths) / 100, rel=0.05)
    assert usage["memory"] == pytest.approx(mib * MIB, rel=0.05)


def counts_memory() -> bool:
    """Tell whether control groups of this machine count memory: not where v1 has that for v2."""
    second = Path("/sys/fs/cgroup/cgroup.controllers")
    return not second.exists() or "memory" in second.read_text().split()


@pytest.mark.both_engines
@pytest.mark.covers("promise what a container has used")
@_PLACES
def test_run_says_it(make_site: MakeSite, place: str) -> None:
    site = make_site(place, settings="[log]\nusage = true\n")
    site.environment["SCRUN_MEM_PER_NODE"] = "1G"
    bundle = site.bundle_of("sh", "-c", _LOAD)
    ended = site.run("run", "--keep", "--bundle", bundle, "one")
    usage = taken(site, "one")
    as_told(usage, ended.stdout)
    assert usage["wall"] >= 2
    assert usage.get("limit") == (1 << 30 if place == "slurm-user" else None)
    assert re.fullmatch(
        r"scrun: used: [0-9.]+ s, 2\.[0-9] s of processor time \([01]\.[0-9] of [0-9]+ "
        r"processors\), 20[0-9]\.[0-9]MiB of memory( \(of 1\.0GiB\))?\n",
        ended.stderr,
    )


@pytest.mark.parametrize("place", ["local-root", "local-user"])
def test_under_an_engine(make_site: MakeSite, place: str) -> None:
    """Its monitor is the parent; here only the control group tells, which root's have."""
    site = make_site(place)
    life = site.shell(f"{fill(200)} & wait; {spin(3)}; {TELL}").created().start()
    assert life.wait(60) == 0
    wait_until("it is known", lambda: life.status == "stopped")
    if site.user.uid:
        assert "org.scrun.usage" not in annotations(site, life.id)
    else:
        usage = json.loads(annotations(site, life.id)["org.scrun.usage"])
        assert usage.get("memory_of") == ("cgroup" if counts_memory() else None)
        as_told({"memory": 200 * MIB, **usage}, life.output())
    life.delete()


def test_an_image_does_not_say_it(make_site: MakeSite) -> None:
    """Nobody asks for a line, and one that has never run has used nothing that is known."""
    site = make_site("local-user")
    config = site.config("true")
    said = {
        "org.scrun.usage": '{"user":1,"system":1}',
        "org.scrun.started": "yesterday",
        "org.scrun.exit_status": "0",
        "org.scrun.reason": "exited",
    }
    config["annotations"] = said
    life = site.life(config=config, container="one").created()
    assert not said.keys() & annotations(site, "one").keys()
    site.must("kill", "one", "KILL")
    wait_until("it is known", lambda: life.status == "stopped")
    found = annotations(site, "one")
    assert found.keys() & said.keys() == {"org.scrun.reason", "org.scrun.exit_status"}
    assert found["org.scrun.reason"] == "killed"
    life.delete()


@_PLACES
def test_the_supervisor_is_killed(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    bundle = site.bundle_of("sh", "-c", f"{fill(200)}; {spin(1)}; echo up; read end; {TELL}")
    running = site.popen("run", "--keep", "--bundle", bundle, "one", stdin=subprocess.PIPE)
    assert running.stdout
    assert running.stdout.readline() == b"up\n"
    kill_supervisor(site)
    output, errors = running.communicate(b"\n", timeout=60)
    assert not errors
    as_told(taken(site, "one"), output.decode())


@pytest.mark.by_shim
def test_several_tasks(make_site: MakeSite) -> None:
    """Their processor time and memory are added up: the job's are for all of them."""
    site = make_site("slurm-user")
    site.environment["SCRUN_NTASKS"] = "2"
    bundle = site.bundle_of("sh", "-c", _LOAD)
    first, second = site.must("run", "--keep", "--bundle", bundle, "one").split()
    usage = taken(site, "one")
    as_told(usage, str(int(first) + int(second)), 400)
    assert usage["wall"] < usage["user"] + usage["system"] + 2


@pytest.mark.oci_conf
def test_srun_does_not_say_it(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings=BY_SRUN)
    site.must("run", "--keep", "--bundle", site.bundle_of("true"), "one")
    found = annotations(site, "one")
    assert found["org.scrun.started"] > "20"
    assert "org.scrun.usage" not in found
    site.must("delete", "one")
