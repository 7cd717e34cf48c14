"""A salloc that is killed before it can say which job it was granted, and some that hang."""

import contextlib
import re
import shutil
import signal
import time

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.processes import descendants, signal_quietly
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

# the job's shell gets another standard input, so that it cannot tell either
_KILLED = """#!/bin/sh
sleep 5 | {salloc} "$@" 2>/dev/null &
sleep 0.5
kill -KILL $!
kill -KILL $$
"""


# as after slurmctld was killed, and knows its pending job no more
_HANGS = """#!/bin/sh
[ "$1" != --version ] || exec {salloc} --version
echo 'salloc: Pending job allocation 7' >&2
echo 'salloc: job 7 queued and waiting for resources' >&2
echo 'salloc: Job allocation 7 has been revoked.' >&2
exec sleep 600
"""


# as while slurmctld takes connections, and answers none
_SILENT = """#!/bin/sh
[ "$1" != --version ] || exec {salloc} --version
exec sleep 600
"""


def site_with(make_site: MakeSite, script: str) -> Site:
    """A place with a salloc of its own."""
    site = make_site("slurm-user", settings='idle_timeout = 5\n[slurm]\nbin = "@BIN@"\n')
    directory = site.base / "bin"
    directory.mkdir()
    for name in ("srun", "scancel", "squeue"):
        (directory / name).symlink_to(shutil.which(name) or name)
    salloc = directory / "salloc"
    salloc.write_text(script)
    salloc.chmod(0o755)
    settings = site.base / "scrun.toml"
    settings.write_text(settings.read_text().replace("@BIN@", str(directory)))
    return site


def test_its_job_is_given_back(make_site: MakeSite) -> None:
    site = site_with(make_site, _KILLED.format(salloc=shutil.which("salloc")))
    assert "no job for container" in site.life("true").refused()
    wait_while("its job", site.jobs, 5)


def test_one_that_does_not_end_is_not_waited_for(make_site: MakeSite) -> None:
    site = site_with(make_site, _HANGS.format(salloc=shutil.which("salloc")))
    # whoever asks squeue first: the one that hears salloc, or the one that looks at the queue
    fate = re.compile("job 7 (was ended|can never start): Slurm does not know it any more")
    assert fate.search(site.life("true").refused(25))


@pytest.mark.parametrize("pending", [False, True])
def test_a_job_of_which_only_the_record_is_left(make_site: MakeSite, pending: bool) -> None:
    """The supervisor, salloc and what waits beside them are killed together; `delete` does it.

    So is `create`, which would do it otherwise.
    """
    site = make_site("slurm-user")
    with cluster.full(site.user) if pending else contextlib.nullcontext():
        life = site.life("sleep", "600")
        if pending:
            life.wait_for("creating")
            wait_until("its job", site.jobs)
            wait_until("it is put down", lambda: "org.scrun.job_id" in life.state()["annotations"])
        else:
            life.created()
        [job] = site.jobs()
        (supervisor,) = site.supervisors()
        victims = [supervisor, *descendants(supervisor)]
        if pending:
            victims += [one.pid for one in site.processes() if {"create", life.id} < {*one.argv}]
        for pid in victims:
            signal_quietly(pid, signal.SIGSTOP)
        for pid in victims:
            signal_quietly(pid)
        time.sleep(1)
        assert site.jobs() == [job]
        life.run("delete", "--force")
        wait_while("its job", site.jobs, 5)
        assert life.status == "gone"


@pytest.mark.timeout(150)
def test_create_does_not_wait_for_one_that_says_nothing(make_site: MakeSite) -> None:
    """Half a minute is longer than Slurm takes to refuse, and shorter than engines wait."""
    site = site_with(make_site, _SILENT.format(salloc=shutil.which("salloc")))
    began = time.monotonic()
    life = site.life("true").created(60)
    assert 25 < time.monotonic() - began < 50
    life.start()
    assert "its job is not in the queue yet" in site.fails("exec", life.id, "true")
    life.kill()
    assert life.wait(5) == 143
    assert life.errors() == "scrun: its job is not in the queue yet\n"
    life.run("delete", timeout=60)
