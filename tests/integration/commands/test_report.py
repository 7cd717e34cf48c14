"""`scrun report`: containers with known loads, wherever they have run."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.audited import audited
from tests.harness.load import MIB, TELL, fill, spin
from tests.harness.site import Site

pytestmark = pytest.mark.covers("scrun report")

_LOAD = f"{spin(2)}; {fill(200)}; {TELL}"


def reported(site: Site, *words: str) -> list[dict[str, Any]]:
    found = json.loads(site.must("report", "--format", "json", *words))["rows"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("place", ["local-root", "local-user", "slurm-user"])
def test_a_known_load(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    site.environment["SCRUN_MEM_PER_NODE"] = "1G"
    bundle = site.bundle_of("sh", "-c", _LOAD)
    hundredths = site.must("run", "--keep", "--bundle", bundle, "one")
    [row] = reported(site)
    assert row["cpu_seconds"] == pytest.approx(int(hundredths) / 100, rel=0.05)
    assert row["memory"] == pytest.approx(200 * MIB, rel=0.05)
    had = row["cpus"] * row["elapsed_seconds"]
    assert row["cpu_percent"] == pytest.approx(100 * row["cpu_seconds"] / had, rel=0.05)
    assert row["enough_cpus"] == 1
    if place == "slurm-user":
        assert row["memory_limit"] == 1 << 30
        if row["memory_of"] != "process":
            assert row["memory_percent"] == pytest.approx(100 * 200 / 1024, rel=0.05)
            assert row["enough_memory"] in (256 * MIB, 320 * MIB)
    assert 0 < row["waited_seconds"] < 60
    [day] = reported(site, "--by", "day")
    assert (day["containers"], day["cpu_percent"]) == (1, row["cpu_percent"])
    assert site.must("report").splitlines()[1].split()[:2] == ["one", "stopped"]
    site.must("delete", "one")
    assert reported(site) == []


_PROLOG = """\
#!/bin/sh
echo "export LD_PRELOAD=$(ls /usr/lib/*/faketime/libfaketime.so.1)"
echo 'export FAKETIME=-1d'
echo 'export FAKETIME_DONT_FAKE_MONOTONIC=1'
"""


@pytest.mark.by_root
def test_nodes_whose_clock_is_wrong(make_site: MakeSite) -> None:
    """What a container has waited, and how long it has run, no node's clock says."""
    site = make_site("slurm-user")
    prolog = Path(cluster.slurm_conf()).with_name("prolog")
    prolog.write_text(_PROLOG)
    prolog.chmod(0o755)
    with cluster.reconfigured(lambda text: f"{text}TaskProlog={prolog}\n"):
        life = site.shell(f"{spin(1)}; cat", stdin="pipe", container="one").created().start()
        shims = [process for process in site.processes() if "FAKETIME=-1d" in process.environment]
        assert shims
        life.close_stdin()
        assert life.wait() == 0
        [row] = reported(site)
        assert row["cpu_seconds"] == pytest.approx(1, rel=0.1)
        assert 1 <= row["elapsed_seconds"] < 30
        assert 0 <= row["waited_seconds"] < 30
        [today] = {found["day"] for found in reported(site)}
        assert today == time.strftime("%Y-%m-%d")
        life.delete()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs an /etc of its own")
def test_one_that_is_deleted(make_site: MakeSite) -> None:
    with audited() as audit:
        site = make_site("slurm-user")
        bundle = site.bundle_of("sh", "-c", spin(1))
        site.must("run", "--keep", "--bundle", bundle, "one")
        [before] = reported(site)
        site.must("delete", "one")
        assert reported(site) == []
        [after] = reported(site, "--audit", str(audit.path))
    figures = ("cpu_percent", "cpu_seconds", "elapsed_seconds", "memory", "exit_status")
    assert {key: after[key] for key in figures} == {key: before[key] for key in figures}
    assert after["cpu_seconds"] == pytest.approx(1, rel=0.1)
    assert after["waited_seconds"] == pytest.approx(before["waited_seconds"], abs=1)
