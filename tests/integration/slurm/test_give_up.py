"""Jobs that cannot start: the reason is told at once, and what no waiting cures is refused."""

import re
import signal
import subprocess
import time

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.site import Site
from tests.harness.wait import wait_until

as_user = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
REASON = "org.scrun.pending"
SOON = 2.0  # a second, and what a loaded machine adds


def reason(life: Life) -> str:
    """What its job waits for."""
    return str(life.state()["annotations"].get(REASON, ""))


@as_user
@pytest.mark.parametrize(
    ("trouble", "word", "words"),
    [
        (cluster.partition_down(), "PartitionDown", "until an administrator opens it"),
        # the second word is the scheduler's, half a second later
        (
            cluster.changed("NodeName=node[1-2]", "State=DRAIN", "Reason=x", back="State=RESUME"),
            "(ReqNodeNotAvail|Nodes required for job are DOWN)",
            "down, drained or reserved|until they come back",
        ),
    ],
)
def test_the_reason_is_told_at_once(site: Site, trouble: object, word: str, words: str) -> None:
    with trouble:  # type: ignore[attr-defined]
        life = site.life("true").wait_for("creating")
        wait_until("its job", site.jobs)
        began = time.monotonic()
        wait_until("a reason", lambda: re.match(word, reason(life)))
        assert time.monotonic() - began < SOON
        log = (site.root / life.id / "log").read_text()
        assert re.search(f" pending: {word}", log)
        assert re.search(words, log)
    life.created()  # it was worth the wait
    assert life.start().wait() == 0


@as_user
def test_a_person_is_told_at_once(site: Site) -> None:
    """Without a terminal, on standard error; and ^C ends the waiting."""
    bundle = site.bundle(site.config("true"))
    with cluster.partition_down():
        null = subprocess.DEVNULL
        run = site.popen("run", "--bundle", str(bundle), "told", stdin=null, stdout=null)
        try:
            wait_until("its job", site.jobs)
            began = time.monotonic()
            assert run.stderr is not None
            line = run.stderr.readline()
            while b"PartitionDown" not in line:
                line = run.stderr.readline()
                assert line
            assert time.monotonic() - began < SOON
        finally:
            run.send_signal(signal.SIGINT)
            status = run.wait(20)
            run.stderr.close()  # type: ignore[union-attr]
    assert status == 130
    wait_until("the job is gone", lambda: not site.jobs())


@as_user
def test_what_no_waiting_cures_is_refused(site: Site) -> None:
    config = site.config("true")
    config["annotations"] = {"SCRUN_JOB_NUM_NODES": "5"}
    refused = site.life(config=config).refused()
    assert "no job for container" in refused
    assert "SCRUN_JOB_NUM_NODES=5 from config.json" in refused
    assert "PartitionNodeLimit" in refused or "node configuration is not available" in refused
    assert "cancelled" not in refused
    assert site.jobs() == []


@as_user
def test_too_much_memory_is_not_a_cancellation(site: Site) -> None:
    for _ in range(3):
        config = site.config("true")
        config["annotations"] = {"SCRUN_MEM_PER_NODE": "99999999"}
        refused = site.life(config=config).refused()
        assert "Requested node configuration is not available: Memory specification" in refused
        assert "SCRUN_MEM_PER_NODE=99999999 from config.json" in refused
        assert "cancelled" not in refused
    assert site.jobs() == []


def test_a_site_may_give_up_on_more(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[slurm]\ngive_up = ["PartitionDown"]\n')
    with cluster.partition_down():
        assert "can never start: PartitionDown" in site.life("true").refused()
        assert site.jobs() == []


def test_a_site_may_wait_for_ever(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings="[slurm]\ngive_up = []\n")
    with cluster.one_minute():
        config = site.config("true")
        config["annotations"] = {"SCRUN_TIMELIMIT": "5"}
        life = site.life(config=config).wait_for("creating")
        wait_until("a reason", lambda: reason(life) == "PartitionTimeLimit")
        time.sleep(4)
        assert reason(life) == "PartitionTimeLimit"
    life.run("delete", "--force")
