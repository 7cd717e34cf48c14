"""A short run of tools/chaos: containers on both engines, each with a fault; nothing is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness import cluster, users

pytestmark = pytest.mark.covers("promise no fault leaves a leak, a lost status or a hang")

_TOOL = CHECKOUT / "tools" / "chaos"


@pytest.mark.timeout(170)
def test_nothing_is_lost_or_left(tmp_path: Path) -> None:
    details = tmp_path / "details"
    options = ["--containers", "80", "--at-once", "6", "--faults", "quick"]
    done = subprocess.run(
        [
            sys.executable, str(_TOOL), *options, "--seed", os.environ.get("SCRUN_SEED", "1"),
            "--user", users.ordinary().name, "--details", str(details),
        ],
        env={**os.environ, "SLURM_CONF": cluster.slurm_conf()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=160,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{details.read_text()[-20000:]}"


def test_another_cluster_is_refused(tmp_path: Path) -> None:
    conf = tmp_path / "etc" / "slurm.conf"
    conf.parent.mkdir()
    conf.write_text("ClusterName=production\n")
    done = subprocess.run(
        [sys.executable, str(_TOOL), "--containers", "1", "--user", users.ordinary().name],
        env={**os.environ, "SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no cluster of tools/slurm-cluster" in done.stderr
