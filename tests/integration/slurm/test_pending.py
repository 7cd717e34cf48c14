"""What people see of a container whose job has to wait."""

import re
import time
from datetime import datetime

import pytest

from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.site import Site
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise jobs that wait, and what shapes a job")

as_user = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)

JOB, REASON, START = "org.scrun.job_id", "org.scrun.pending", "org.scrun.estimated_start"


def annotations(life: Life) -> dict[str, str]:
    found: dict[str, str] = life.state()["annotations"]
    return found


@pytest.mark.covers("scrun a job that waits: state, list, log")
@as_user
def test_reason_and_start_are_shown_while_it_waits(site: Site) -> None:
    with cluster.full(site.user):
        life = site.life("true").wait_for("creating")
        wait_until("a reason", lambda: REASON in annotations(life))
        shown = annotations(life)
        assert shown[REASON] == "Resources"
        job = shown[JOB]
        # the backfill scheduler looks at it every 30 seconds
        if cluster.slurm("squeue", "--noheader", "--jobs", job, "--format=%S").strip() == "N/A":
            assert START not in shown
        cluster.slurm("scontrol", "update", f"JobId={job}", "StartTime=now+3600")
        wait_until("a later reason", lambda: annotations(life)[REASON] == "BeginTime")
        start = datetime.fromisoformat(annotations(life)[START]).timestamp()
        assert abs(start - time.time() - 3600) < 30
        cluster.slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
    life.created()
    assert not {REASON, START} & annotations(life).keys()
    log = (site.root / life.id / "log").read_text()
    start_too = ", starts about [0-9:]+" if START in shown else ""
    assert re.search(rf"job {job} pending: Resources{start_too} \(the nodes are busy\)", log)
    assert f"job {job} pending: BeginTime, starts about " in log
    assert life.start().wait() == 0


@pytest.mark.covers("scrun a job that waits: state, list, log")
@as_user
def test_one_that_is_deleted_while_it_waits(site: Site) -> None:
    with cluster.full(site.user):
        life = site.life("true").wait_for("creating")
        wait_until("a reason", lambda: REASON in annotations(life))
        life.run("delete", "--force")
        assert life.status == "gone"


@pytest.mark.covers("scrun a job that waits: state, list, log")
@as_user
def test_one_that_does_not_wait(site: Site) -> None:
    life = site.life("true").created()
    assert not {REASON, START} & annotations(life).keys()
    assert " pending: " not in (site.root / life.id / "log").read_text()
