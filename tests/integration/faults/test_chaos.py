"""A short run of tools/chaos: containers on both engines, each with a fault; nothing is left."""

import os
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness import cluster, users
from tests.harness.nightly import nightly, often
from tests.harness.program import run_program
from tests.stress.chaos.testbed import launch_of

pytestmark = pytest.mark.covers("promise no fault leaves a leak, a lost status or a hang")

_TOOL = CHECKOUT / "tools" / "chaos"


@pytest.mark.timeout(often(170, 620))
@pytest.mark.parametrize(
    "options",
    [
        ["--containers", str(often(16, 160))],
        nightly(["--containers", "40", "--inside", "script,array,step"]),
        nightly(["--containers", "80", "--forwards"]),
    ],
    ids=["on a login node", "in jobs", "with forwards"],
)
def test_nothing_is_lost_or_left(tmp_path: Path, options: list[str]) -> None:
    details = tmp_path / "details"
    if "--forwards" in options and launch_of(cluster.slurm_conf()) != "shim":
        options = [*options, "--engine", "local"]
    options = [*options, "--at-once", "6", "--faults", "quick"]
    options += ["--seed", os.environ.get("SCRUN_SEED", "1"), "--details", str(details)]
    done = run_program(
        [sys.executable, str(_TOOL), *options, "--user", users.ordinary().name],
        env={**os.environ, "SLURM_CONF": cluster.slurm_conf()},
        timeout=often(160, 600),
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{details.read_text()[-20000:]}"


def test_another_cluster_is_refused(tmp_path: Path) -> None:
    conf = tmp_path / "etc" / "slurm.conf"
    conf.parent.mkdir()
    conf.write_text("ClusterName=production\n")
    done = run_program(
        [sys.executable, str(_TOOL), "--containers", "1", "--user", users.ordinary().name],
        env={**os.environ, "SLURM_CONF": str(conf)},
    )
    assert done.returncode == 2
    assert "is not a cluster of tools/slurm-cluster" in done.stderr
