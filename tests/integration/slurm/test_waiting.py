"""A container whose job is in the queue for longer than its `create` waits."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.settings.file.load import Settings
from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.site import Site, unit
from tests.harness.slow_staging import stage_slowly
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.shares_sites

REASON = "org.scrun.pending"
BUSY = re.compile(r"job \d+ pending: Resources(, starts about [0-9:]+)? \(the nodes are busy\)")


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """A place of a user's where `create` waits for half a second."""
    return make_site("slurm-user", create_timeout=0.5)


def waiting(site: Site, script: str = "echo ran; exit 7", *, started: bool = True) -> Life:
    """Make a container whose job waits."""
    life = site.shell(script).created()
    assert life.status == "created"
    if started:
        began = time.monotonic()
        life.start()
        assert time.monotonic() - began < 2
        assert life.status == "running"
    return life


def test_it_runs_when_its_job_comes(site: Site) -> None:
    with cluster.full(site.user):
        life = waiting(site)
        life.complains(BUSY)
        [job] = site.jobs()
        number = job.split()[0]
        wait_until("the reason", lambda: life.state()["annotations"].get(REASON) == "Resources")
        assert life.state()["pid"] == life.anchor
        assert "pending: Resources" in site.must("list")
        cluster.slurm("scontrol", "update", f"JobId={number}", "StartTime=now+3600")
        life.complains("pending: BeginTime, starts about ")
        cluster.slurm("scontrol", "update", f"JobId={number}", "StartTime=now")
    assert life.wait() == 7
    assert life.output() == "ran\n"
    first, *others, last = life.errors().splitlines()
    assert BUSY.search(first) or first == f"scrun: job {number} is queued"
    assert any("BeginTime" in line for line in others)
    assert last.startswith(f"scrun: job {number} has been allocated node")
    log = (site.root / life.id / "log").read_text()
    assert BUSY.search(log)
    life.delete()


def test_it_is_started_when_its_job_is_there(site: Site) -> None:
    """Then there is nothing to say."""
    with cluster.full(site.user):
        life = waiting(site, started=False)
    wait_until("nodes", lambda: "org.scrun.nodes" in life.state()["annotations"])
    time.sleep(1)
    assert life.status == "created"
    assert life.start().wait() == 7
    assert (life.output(), life.errors()) == ("ran\n", "")


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize(
    ("how", "status", "started"),
    [
        ("TERM", 143, False),
        ("KILL", 137, True),
        ("anchor", 143, True),
        ("keyboard", 130, True),
        ("delete", 137, False),
        nightly("TERM", 143, True),
        nightly("KILL", 137, False),
        nightly("anchor", 143, False),
        nightly("keyboard", 130, False),
        nightly("delete", 137, True),
    ],
)
def test_an_end_while_it_waits(site: Site, how: str, status: int, *, started: bool) -> None:
    life = waiting(site, started=started)
    wait_until("the reason", lambda: REASON in life.state()["annotations"])
    assert len(site.jobs()) == 1
    began = time.monotonic()
    if how == "anchor":
        os.kill(life.anchor, signal.SIGTERM)
    elif how == "keyboard":
        os.kill(life.anchor, signal.SIGINT)
    elif how == "delete":
        life.delete()
    else:
        life.kill(how)
    assert life.wait(5) == status
    assert time.monotonic() - began < 5
    if how != "delete":
        annotations = life.state()["annotations"]
        assert annotations["org.scrun.exit_status"] == str(status)
        assert REASON not in annotations
        life.delete()
    assert life.status == "gone"
    wait_while("the job", site.jobs, 2)


@pytest.mark.usefixtures("queue")
def test_what_needs_a_process_is_refused_in_one_line(site: Site) -> None:
    life = waiting(site)
    life.complains(BUSY)
    resources = '{"memory": {"limit": 1000000}}'
    file = site.base / "b" / "resources.json"
    file.write_text(resources)
    for words in (
        ("exec", life.id, "true"),
        ("pause", life.id),
        ("resume", life.id),
        ("ps", life.id),
        ("events", "--stats", life.id),
        ("update", "--resources", str(file), life.id),
    ):
        said = site.fails(*words)
        assert " is not possible yet: job " in said, (words, said)
        assert BUSY.search(said)
    life.kill("USR1")  # ignored, as a first process ignores it
    assert life.status == "running"


@pytest.mark.usefixtures("queue")
def test_a_second_start_is_refused(site: Site) -> None:
    life = waiting(site)
    assert "cannot be started: it is running" in site.fails("start", life.id)


@pytest.mark.usefixtures("queue")
def test_its_job_is_cancelled_by_somebody_else(site: Site) -> None:
    life = waiting(site)
    life.complains(BUSY)
    number = site.jobs()[0].split()[0]
    cluster.slurm("scancel", number)
    assert life.wait() == 122
    assert life.state()["annotations"]["org.scrun.reason"] == "cancelled"
    *_, last = life.errors().splitlines()
    assert last.startswith(f"scrun: no job for container {life.id}: job {number} was cancelled")
    assert last.removeprefix("scrun: ") in (site.root / life.id / "log").read_text()
    life.delete()


def test_what_is_refused_at_once_is_the_error_of_create(make_site: MakeSite) -> None:
    site = make_site("slurm-user", create_timeout=0)
    life = site.life("true", environment={"SCRUN_PARTITION": "nowhere"})
    assert "artition" in life.refused()
    assert "not found" in site.life("no-such-program").refused()
    assert site.jobs() == []


TOO_LONG = {"SCRUN_TIMELIMIT": "5"}


@pytest.fixture
def short() -> Iterator[None]:
    """A partition whose jobs take one minute at most."""
    with cluster.one_minute():
        yield


@pytest.mark.parametrize(
    "attempt", [1, nightly(2), nightly(3)]
)  # 24.11 gives the reason sooner or later
def test_what_can_never_start_is_refused_by_create(
    make_site: MakeSite, short: None, attempt: int
) -> None:
    """That is why it waits for as long as it does."""
    site = make_site("slurm-user", create_timeout=Settings().create_timeout)
    life = site.life("true", environment=TOO_LONG)
    if life.create_status() == 0:  # 26.05 gave it once after six seconds, in some 200 tries
        assert cluster.job(life.job_id)["Reason"] == "None"
        life.must("delete", "--force")
        life = site.life("true", environment=TOO_LONG)
    assert "can never start: PartitionTimeLimit" in life.refused()


def test_what_can_never_start_when_create_has_answered(site: Site, short: None) -> None:
    life = site.life("true", environment=TOO_LONG).created().start()
    assert life.wait() == 125
    assert life.state()["annotations"]["org.scrun.reason"] == "scrun-failure"
    assert " can never start: " in life.errors().splitlines()[-1]
    life.delete()


def test_a_patient_create_waits(make_site: MakeSite) -> None:
    site = make_site("slurm-user", create_timeout=30)
    with cluster.full(site.user):
        life = site.life("true").wait_for("creating")
        time.sleep(2)
        assert life.status == "creating"
    assert life.created().start().wait() == 0
    assert life.errors() == ""


def test_staging_that_fails_after_the_answer(site: Site) -> None:
    stage_slowly(site, "slurm.ERROR")
    life = site.life("true").created().start()
    assert life.status == "running"
    assert life.wait() == 125
    assert life.state()["annotations"]["org.scrun.reason"] == "scrun-failure"
    *before, last = life.errors().splitlines()
    expected = [": its bundle is being staged"]
    if len(before) > 1:  # `create` had waited long enough before the job came
        expected = [" is queued", " has been allocated node"]
    assert all(words in line for words, line in zip(expected, before, strict=True)), before
    assert "slow.lua" in last
    life.delete()


def test_an_end_while_it_is_staged(site: Site) -> None:
    stage_slowly(site)
    life = site.life("true").created().start()
    assert "its bundle is being staged" in site.fails("exec", life.id, "true")
    life.kill()
    life.ends(143, 2)


# scrun run


def popen(site: Site, *words: str, stdio: int = subprocess.PIPE) -> "subprocess.Popen[bytes]":
    return site.popen(*words, stdio=stdio, stdin=subprocess.DEVNULL)


def test_run_without_a_terminal_says_it_in_a_line(site: Site) -> None:
    with cluster.full(site.user):
        process = popen(site, "run", "-b", site.bundle_of("sh", "-c", "echo ran; exit 7"), "one")
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert BUSY.search(line)
        wait_until("its state", lambda: '"creating"' in site.run("state", "one").stdout)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (7, b"ran\n")
    assert b" has been allocated node" in err.splitlines()[-1]


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize("number", [signal.SIGINT, nightly(signal.SIGTERM)])
def test_run_is_interrupted_while_it_waits(site: Site, number: signal.Signals) -> None:
    process = popen(site, "run", "-b", site.bundle_of("true"), "one")
    wait_until("the job", site.jobs)
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode in (128 + number, -number)
    wait_while("the job", site.jobs, 5)
    wait_while("the record", lambda: site.must("list", "--quiet"), 5)


def test_run_at_a_terminal_shows_the_live_line(site: Site) -> None:
    screen, slave = open_terminal()
    with cluster.full(site.user):
        process = popen(site, "run", "-b", site.bundle_of("echo", "now"), "one", stdio=slave)
        screen.read_until("pending: Resources")
    said = screen.read_until("now")
    assert "\r\x1b[K" in said
    assert "scrun:" not in said
    assert process.wait(30) == 0
    os.close(slave)
    screen.close()


def test_an_interrupt_clears_the_live_line(site: Site) -> None:
    screen, slave = open_terminal()
    with cluster.full(site.user):
        process = popen(site, "run", "-b", site.bundle_of("echo", "now"), "one", stdio=slave)
        screen.read_until("pending: Resources")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT
    os.close(slave)
    assert screen.read_all().endswith("\r\x1b[K")
    screen.close()


def test_run_detached_returns_while_its_job_waits(site: Site) -> None:
    with cluster.full(site.user):
        bundle = site.bundle_of("sh", "-c", "echo ran; exit 7")
        with open(site.base / "b" / "output", "wb") as output:
            process = popen(site, "run", "--detach", "-b", bundle, "one", stdio=output.fileno())
            assert process.wait(10) == 0
        assert '"running"' in site.must("state", "one")
        said = Path(output.name)
        wait_until("it says why", lambda: BUSY.search(said.read_text()))
    wait_until("its end", lambda: '"stopped"' in site.must("state", "one"))
    assert '"org.scrun.exit_status": "7"' in site.must("state", "one")
    assert said.read_text().splitlines()[-1] == "ran"
    site.must("delete", "--force", "one")


@pytest.mark.covers("service its job waits: the start returns")
def test_a_service_is_up_while_its_job_waits(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        with cluster.full(site.user):
            service = stack.enter_context(unit(site, "exit 3"))
            service.tells("main")
        assert service.tells("ended") == 3
        service.wait()


@pytest.mark.covers("service its job waits: the start returns")
@pytest.mark.usefixtures("queue")
def test_a_service_is_stopped_while_its_job_waits(site: Site) -> None:
    with unit(site, "true") as service:
        service.tells("main")
        assert service.stop(20) == 143
    wait_while("the job", site.jobs, 2)
