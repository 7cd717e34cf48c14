"""Containers in jobs that serve several (`[slurm] linger`) outlive their supervisor."""

import os
import random
import signal
import time
from dataclasses import astuple

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import (
    COUNT,
    UNTIL_TOLD,
    adopted,
    adoptions,
    end,
    kill_now_and_then,
    kill_supervisor,
    numbers,
    output,
    told,
)
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.processes import shims_of, signal_quietly
from tests.harness.site import Site
from tests.harness.users import User
from tests.harness.wait import wait_while


@pytest.fixture(params=["shim", nightly("container", marks=[pytest.mark.oci_conf])])
def site(request: pytest.FixtureRequest, make_site: MakeSite) -> Site:
    settings = f'idle_timeout = 20\n[slurm]\nlinger = 60\nlaunch = "{request.param}"\n'
    return make_site("slurm-user", settings=settings)


def job_of(life: Life) -> str:
    return str(life.state()["annotations"]["org.scrun.job_id"])


def lived(site: Site) -> str:
    """A container that has lived; its job, which waits."""
    life = site.shell("true").created(60)
    job = job_of(life)
    life.start(60).ends(0, 60)
    assert waiting(site) == [job]
    return job


def waiting(site: Site) -> list[str]:
    return site.must("list", "--jobs", "--quiet").split()


def jobs(site: Site) -> list[str]:
    return [job.split()[0] for job in site.jobs()]


@pytest.mark.parametrize("which", [nightly("first"), "later"])
def test_one_that_runs_goes_on(site: Site, which: str) -> None:
    """Its job is given back at its end: only jobs of containers of their own wait."""
    job = lived(site) if which == "later" else ""
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    assert job_of(life) == (job or job_of(life))
    for times in (1, 2):
        kill_supervisor(site)
        assert life.state()["status"] == "running"
        adopted(life, times=times)
    assert site.must("exec", life.id, "echo", "in it") == "in it\n"
    told(life)
    assert waiting(site) == []
    wait_while("the job", lambda: jobs(site), 20)
    following = lived(site)
    assert following != job
    site.must("release")


@pytest.mark.parametrize("how", [nightly("TERM"), "restart"])
def test_neither_an_end_nor_a_restart_on_purpose_ends_it(site: Site, how: str) -> None:
    job = lived(site)
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    assert job_of(life) == job
    if how == "restart":
        assert site.must("supervisor", "restart") == ""
    else:
        [supervisor] = site.supervisors()
        os.kill(supervisor, signal.SIGTERM)
    adopted(life)
    assert life.state()["status"] == "running"
    told(life)
    assert waiting(site) == []


@pytest.mark.nightly
def test_one_that_was_created_is_started(site: Site) -> None:
    job = lived(site)
    life = site.shell(UNTIL_TOLD).created(60)
    kill_supervisor(site)
    assert life.state()["status"] == "created"
    life.start(60).says("up", 30)
    assert jobs(site) == [job]
    told(life)


def test_what_waits_is_given_back_beside_one_that_goes_on(site: Site) -> None:
    """Nobody is in it: the keeper holds nothing of it."""
    first = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    idle = lived(site)
    assert job_of(first) != idle
    kill_supervisor(site)
    wait_while("the job that waits", lambda: idle in jobs(site), 20)
    adopted(first)
    assert waiting(site) == []
    told(first)


@pytest.mark.nightly
def test_no_byte_is_lost_or_doubled_however_often_it_dies(site: Site, dice: random.Random) -> None:
    lived(site)
    life = site.shell(COUNT.format(200_000)).created(60).start(60)
    kill_now_and_then(site, dice, 5)
    assert life.wait(90) == 7
    assert output(life) == numbers(200_000)
    end(life)


def test_it_goes_on_in_the_second_shim_of_its_job(make_site: MakeSite) -> None:
    """What the first one needed is kept no longer."""
    settings = 'idle_timeout = 20\n[slurm]\nlinger = 60\nlaunch = "shim"\n'
    site = make_site("slurm-user", settings=settings)
    job = lived(site)
    first = shim(job)
    signal_quietly(first, signal.SIGKILL)
    wait_while("the shim", lambda: os.path.exists(f"/proc/{first}"))
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    assert job_of(life) == job
    kill_supervisor(site)
    adopted(life)
    told(life)


@pytest.mark.nightly
def test_pods_in_one_job_after_another(make_site: MakeSite) -> None:
    settings = 'idle_timeout = 20\n[slurm]\nlinger = 60\nlaunch = "shim"\n'
    site = make_site("slurm-user", settings=settings)
    job = lived(site)
    lives = []
    for _ in range(2):
        config = site.config("sh", "-c", UNTIL_TOLD)
        config["annotations"] = {"org.scrun.pod": f"{site.base.name}.together"}
        lives.append(site.life(config=config).created(60).start(60).says("up", 30))
    assert [job_of(life) for life in lives] == [job, job]
    kill_supervisor(site)
    adopted(*lives)
    told(*lives)
    assert waiting(site) == []


def test_its_job_is_cancelled_meanwhile(site: Site) -> None:
    job = lived(site)
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    supervisor = site.stopped_supervisor()
    cluster.slurm("scancel", job)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(60) == 122
    assert life.state()["annotations"]["org.scrun.reason"] == "cancelled"
    end(life)


def shim(job: str) -> int:
    [pid] = shims_of(job)
    return pid


class Apart(User):
    """A user whose commands have user namespaces of their own, and so have their supervisors."""

    @property
    def prefix(self) -> list[str]:
        return [*super().prefix, "unshare", "--user", "--map-current-user", "--"]


class Loan:
    """A container in a job that another supervisor keeps, as that of `buildah run` is.

    Attributes:
        job: The job.
        lender: The supervisor that keeps it.
        borrower: That of the container.
        life: The container, which runs.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.job = lived(site)
        [self.lender] = site.supervisors()
        before, site.user = site.user, Apart(*astuple(site.user))
        try:
            self.life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
        finally:
            site.user = before
        assert job_of(self.life) == self.job
        [self.borrower] = {*site.supervisors()} - {self.lender}

    def kill(self, *supervisors: int, number: int = signal.SIGKILL) -> None:
        for supervisor in supervisors:
            os.kill(supervisor, number)
        wait_while("the killed", lambda: {*supervisors} & {*self.site.supervisors()})
        assert self.life.state()["status"] == "running"

    def ends(self) -> None:
        """It ends as it is told, and the job is given back to Slurm."""
        assert self.site.must("exec", self.life.id, "echo", "in it") == "in it\n"
        assert jobs(self.site) == [self.job]
        self.life.kill("USR1")
        assert self.life.wait(30) == 7
        self.life.delete(60)
        assert waiting(self.site) == []
        wait_while("the job", lambda: jobs(self.site), 20)


@pytest.fixture
def loan(site: Site) -> Loan:
    return Loan(site)


def test_who_has_lent_a_job_has_it_back(loan: Loan) -> None:
    loan.life.kill("USR1")
    assert loan.life.wait(30) == 7
    loan.life.delete(60)
    assert waiting(loan.site) == [loan.job]
    loan.site.must("release")


@pytest.mark.parametrize("number", [signal.SIGKILL, nightly(signal.SIGTERM)])
def test_the_lender_ends(loan: Loan, number: int) -> None:
    """The borrower holds the job alone, and what keeps that outlives it, too."""
    loan.kill(loan.lender, number=number)
    time.sleep(1)
    assert loan.life.state()["status"] == "running"
    assert adoptions(loan.life) == 0
    loan.kill(loan.borrower)
    adopted(loan.life)
    loan.ends()


@pytest.mark.parametrize("number", [nightly(signal.SIGKILL), signal.SIGTERM])
def test_the_borrower_ends(loan: Loan, number: int) -> None:
    loan.kill(loan.borrower, number=number)
    adopted(loan.life)
    assert loan.lender in loan.site.supervisors()
    loan.ends()


@pytest.mark.nightly
def test_both_end_in_any_order(loan: Loan) -> None:
    loan.kill(loan.borrower)
    adopted(loan.life)
    loan.kill(loan.lender)
    time.sleep(1)
    loan.ends()


def test_both_end_at_once(loan: Loan) -> None:
    loan.kill(loan.lender, loan.borrower)
    adopted(loan.life)
    loan.ends()


@pytest.mark.nightly
def test_the_lender_is_restarted(loan: Loan) -> None:
    """It does not wait for what it has lent."""
    loan.site.must("supervisor", "restart", str(loan.lender))
    wait_while("the lender", lambda: loan.lender in loan.site.supervisors())
    assert loan.life.state()["status"] == "running"
    loan.ends()


@pytest.mark.parametrize("alone", [nightly(False), True])
def test_a_lent_job_is_cancelled(loan: Loan, *, alone: bool) -> None:
    if alone:
        loan.kill(loan.lender)
        time.sleep(1)
    else:
        loan.kill(loan.borrower)
        adopted(loan.life)
    cluster.slurm("scancel", loan.job)
    assert loan.life.wait(60) == 122
    assert loan.life.state()["annotations"]["org.scrun.reason"] == "cancelled"
    end(loan.life)
