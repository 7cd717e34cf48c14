"""act, which runs workflows of GitHub's on this machine: each of their jobs is one of Slurm's."""

import re
import shutil
from pathlib import Path

import pytest

from tests.harness.engine_api import Api
from tests.harness.program import run_program

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.covers("promise clients"),
    pytest.mark.parametrize("_api", ["podman-slurm"], indirect=True),
]

WORKFLOW = """\
on: push
jobs:
  one:
    runs-on: ubuntu-latest
    strategy:
      matrix:
        number: [1, 2, 3, 4, 5, 6]
    steps:
      - shell: sh
        run: echo "told=${{ matrix.number }}-$SLURM_JOB_ID" | tee told; test -s told
"""


def test_a_matrix(api: Api) -> None:
    """Six jobs of a workflow are six of Slurm's."""
    found = shutil.which("act")
    assert found is not None, "act is missing: tools/setup --test"
    home = api.engine.site.base / "b" / "act"
    workflows = home / ".github" / "workflows"
    workflows.mkdir(parents=True)
    (workflows / "ci.yaml").write_text(WORKFLOW)
    (home / ".actrc").touch()
    api.engine.site.user.give(home)
    options = ("--pull=false", "--platform", "ubuntu-latest=localhost/busybox", "--rm")
    socket = ("--container-daemon-socket", "-")
    user = api.engine.site.user
    done = run_program(
        [*user.prefix, found, "push", *options, *socket, "--concurrent-jobs", "6"],
        env={**user.environment, "HOME": str(home), "DOCKER_HOST": api.url, "NO_COLOR": "1"},
        cwd=Path(home),
        timeout=110,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    told = set(re.findall(r"told=(\d)-(\d+)", done.stdout))
    assert {number for number, _ in told} == set("123456")
    assert len({job for _, job in told}) == 6
