"""What is left when a supervisor is killed together with all that it has started."""

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.processes import descendants
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

A_MINUTE = 60.0


def kill_all(site: Site) -> None:
    """SIGKILL for all processes of a place on this host at once, as at the end of a session.

    What runs in a job is on another host, for a user.
    """
    stopped: dict[int, int] = {}
    with contextlib.ExitStack() as stack:
        while new := [pid for pid in ours(site) if pid not in stopped]:
            for pid in new:  # so that none sees another one's end, nor starts one that escapes
                stopped[pid] = -1
                with contextlib.suppress(ProcessLookupError):
                    stopped[pid] = os.pidfd_open(pid)
                    stack.callback(os.close, stopped[pid])
                    signal.pidfd_send_signal(stopped[pid], signal.SIGSTOP)
        there = {pid: pidfd for pid, pidfd in stopped.items() if pidfd >= 0}
        for pidfd in there.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

        def alive() -> list[int]:
            return [pid for pid, pidfd in there.items() if not has_ended(pidfd)]

        wait_while("the killed", lambda: [*site.supervisors(), *alive()])


def has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def ours(site: Site) -> list[int]:
    """The processes of a place on this host."""
    found = [process.pid for process in site.processes() if process.pid != os.getpid()]
    found += [pid for supervisor in site.supervisors() for pid in descendants(supervisor)]
    return [pid for pid in dict.fromkeys(found) if not is_of_a_job(pid)]


def is_of_a_job(pid: int) -> bool:
    """Whether Slurm has started a process, on one of the nodes."""
    while pid > 1:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            return False
        if "(slurmstepd" in name or "(slurmd" in name:
            return True
        pid = int(rest.split()[1])
    return False


def is_clean(site: Site) -> bool:
    """Whether nothing is left but records, which say that their container has stopped."""
    records = [entry for entry in site.root.iterdir() if entry.name[0] != "@"]
    states = [json.loads((record / "state.json").read_text()) for record in records]
    known = all(state["status"] == "stopped" and not state["staged"] for state in states)
    owned = any(state["job_id"] and state["owns_job"] for state in states)
    return known and not owned and not site.jobs()


def running(site: Site) -> Life:
    """A container whose job is there; *running* is also one whose job still waits."""
    life = site.life("sleep", "600").created(60).start()
    wait_until("its job", lambda: [job for job in site.jobs() if "RUNNING" in job], 30)
    return life


def orphaned(site: Site) -> None:
    """A running job whose supervisor, salloc and srun are killed."""
    running(site)
    kill_all(site)
    assert len(site.jobs()) == 1


def test_delete_cancels_the_job(make_site: MakeSite) -> None:
    """By its record: nobody would find it by the comment, which a site may change."""
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    life = running(site)
    kill_all(site)
    [job] = site.jobs()
    cluster.slurm("scontrol", "update", f"JobId={job.split()[0]}", "Comment=of the site")
    site.must("delete", "--force", life.id, timeout=60)
    wait_while("the job", lambda: [job for job in site.jobs() if "COMPLETING" not in job], 5)
    site.settle(20)


@pytest.mark.parametrize("command", ["list", nightly("state"), "create", nightly("doctor")])
def test_the_next_command_has_it_given_back(make_site: MakeSite, command: str) -> None:
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    life = running(site)
    kill_all(site)
    assert len(site.jobs()) == 1
    if command == "list":
        assert "the supervisor was lost" in site.must("list")
    elif command == "state":
        assert life.state()["status"] == "stopped"
    elif command == "create":
        other = site.life("true").created(60)
        other.delete(60)
    else:
        site.run("doctor", timeout=120)
    wait_until("everything given back", lambda: is_clean(site), A_MINUTE)
    assert life.state()["annotations"]["org.scrun.message"] == "the supervisor was lost"
    life.delete()


def test_after_a_reboot_of_the_submit_host(make_site: MakeSite) -> None:
    """The record names a supervisor of another boot, whose number somebody has now."""
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    life = running(site)
    kill_all(site)
    path = site.root / life.id / "state.json"
    record = json.loads(path.read_text())
    record["supervisor"] |= {"pid": os.getpid(), "boot": "another boot"}
    path.write_text(json.dumps(record))
    assert life.state()["status"] == "stopped"
    # for a moment it looks as if it were adopted: who cleans up has its lock before it says so
    wait_until("it is lost", lambda: "the supervisor was lost" in site.must("list"))
    wait_until("everything given back", lambda: is_clean(site), A_MINUTE)
    life.delete()


def test_a_pending_job_is_cancelled(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings="idle_timeout = 5\n", create_timeout=0.5)
    with cluster.full(site.user):
        life = site.life("true").created()
        wait_until("the reason", lambda: "org.scrun.pending" in life.state()["annotations"])
        kill_all(site)
        assert "PENDING" in site.jobs()[0]
        assert "org.scrun.pending" not in life.state()["annotations"]
        wait_until("everything given back", lambda: is_clean(site), A_MINUTE)
        assert "org.scrun.pending" not in life.state()["annotations"]


def cancellers(site: Site) -> list[int]:
    """The processes that cancel a pending job when its supervisor is gone."""
    return [
        process.pid
        for process in site.processes()
        if any(word.endswith("/scancel") for word in process.argv)
    ]


def test_a_pending_job_goes_with_its_supervisor(make_site: MakeSite) -> None:
    """At once, though nobody calls scrun any more."""
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    with cluster.full(site.user):
        life = site.life("true")
        # salloc tells of a job a moment after squeue does, later on a busy machine
        wait_until("who cancels it", lambda: cancellers(site))
        [supervisor] = site.supervisors()
        os.kill(supervisor, signal.SIGKILL)
        wait_while("the job", site.jobs, 10)
    life.run("state")
    wait_until("everything given back", lambda: is_clean(site), A_MINUTE)


def test_a_job_without_a_record_is_found_by_its_comment(make_site: MakeSite) -> None:
    """The root directory was in /run, which went with the session."""
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    orphaned(site)
    shutil.rmtree(site.root)
    assert site.must("list").startswith("ID")
    wait_while("the job", site.jobs, A_MINUTE)
    wait_while("the one that gave it back", site.supervisors, 20)


def test_the_jobs_of_the_living_and_of_others_stay(make_site: MakeSite) -> None:
    """One root directory's dead are not another one's."""
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    other = make_site("slurm-user", settings="idle_timeout = 5\n")
    living = running(other)
    orphaned(site)
    other.must("list")
    site.must("list")
    wait_while("the job of the dead", site.jobs, A_MINUTE)
    time.sleep(3)
    assert len(other.jobs()) == 1
    assert living.status == "running"
    living.delete()


def staging_in(site: Site) -> Path:
    """Have bundles staged in a directory that stays when the root directory goes."""
    scratch = site.base / "scratch"
    with (site.base / "scrun.toml").open("a") as settings:
        settings.write(f'[staging]\nscratch = "{scratch}"\n')
    return scratch


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_an_id_can_be_used_again_when_its_record_is_gone(make_site: MakeSite, place: str) -> None:
    site = make_site(place, settings="idle_timeout = 5\n")
    scratch = staging_in(site)
    site.life("sleep", "600", container="c").created()
    kill_all(site)
    [left] = scratch.iterdir()
    assert json.loads((left / "owner.json").read_text())["id"] == "c"
    shutil.rmtree(site.root)
    shutil.rmtree(site.base / "l" / "c")
    again = site.life("true", container="c", bundle=site.bundle(site.config("true")))
    again.created(60).start()
    again.ends(0, 60)
    wait_while("staged bundles", lambda: list(scratch.iterdir()), 20)


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_staged_bundles_without_a_record_are_removed(make_site: MakeSite, place: str) -> None:
    """The variables of the container are in them."""
    site = make_site(place, settings="idle_timeout = 5\n")
    scratch = staging_in(site)
    site.life("sleep", "600").created()
    living = make_site(place, settings=f'idle_timeout = 5\n[staging]\nscratch = "{scratch}"\n')
    other = living.life("sleep", "600").created()
    assert len(list(scratch.iterdir())) == 2
    kill_all(site)
    shutil.rmtree(site.root)
    site.must("list")
    wait_until("one staged bundle", lambda: len(list(scratch.iterdir())) == 1, A_MINUTE)
    assert other.status == "created"
    other.delete()
    assert list(scratch.iterdir()) == []


def test_a_root_directory_that_is_removed_is_made_again(make_site: MakeSite) -> None:
    """The end of a session removes /run/user/UID under running containers."""
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    life = site.shell("trap 'exit 7' USR1; echo up; while :; do sleep 0.1; done")
    life.created(60).start(60).says("up", 60)
    for _ in range(3):  # what is made again may go again
        shutil.rmtree(site.root)
        wait_until("the record", (site.root / life.id / "state.json").exists, 2)
        assert life.status == "running"
    assert life.id in site.must("list")
    life.kill("USR1")
    life.ends(7)
    site.settle()


def test_an_id_that_was_taken_meanwhile_stays_with_who_has_it(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    first = site.shell("echo up; exec sleep 600", container="c").created(60).start().says("up", 60)
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGSTOP)  # else it makes its directory again at once
    shutil.rmtree(site.root)
    shutil.rmtree(site.base / "l" / "c")
    second = site.life("sleep", "601", container="c").created(60).start()
    os.kill(supervisor, signal.SIGCONT)
    assert first.wait(30) == 125
    assert "another one has its id now" in first.errors()
    wait_until("one job", lambda: len(site.jobs()) == 1, 20)
    assert second.status == "running"
    second.delete()


def begin_some(site: Site, dice: random.Random, gate: str) -> "list[subprocess.Popen[bytes]]":
    """Have containers in every phase of their lives; return who deletes one of them."""
    waits = {"SCRUN_DEPENDENCY": f"afterany:{gate}"}
    lives = [
        site.life("sleep", "600", environment=waits if dice.random() < 0.25 else None)
        for _ in range(dice.randint(1, 3))
    ]
    for life in lives:
        if dice.random() < 0.7:
            life.created(60)
            if dice.random() < 0.7:
                life.start(60)
                if dice.random() < 0.5:
                    life.wait_for("running", 60)
    return [
        site.popen("delete", "--force", life.id, stdio=subprocess.DEVNULL)
        for life in dice.sample(lives, dice.randint(0, 1))
    ]


def one_round(
    site: Site, dice: random.Random, root_goes: bool, scratch: Path, gate: str, number: int
) -> None:
    """Kill all, and see what the next commands leave."""
    deleting = begin_some(site, dice, gate)
    time.sleep(dice.uniform(0, 1.5))
    kill_all(site)
    for process in deleting:
        process.wait(10)
    if root_goes:
        shutil.rmtree(site.root, ignore_errors=True)
    began = time.monotonic()
    found = site.must("list", "--format", "json")
    for state in json.loads(found):
        site.must("delete", "--force", state["id"], timeout=60)

    def left() -> list[str]:
        # a job that was told to end while it was launched is killed after its KillWait
        things = [thing for thing in site.leftovers() if "COMPLETING" not in thing]
        return things + [entry.name for entry in scratch.glob("*")]  # no job, and there is none

    wait_while(f"what was left in round {number}", left, A_MINUTE)
    print(f"round {number}: clean after {time.monotonic() - began:.1f} s")
    wait_while("completing jobs", site.jobs, 30)
    site.clear()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("root_goes", [True, nightly(False)])
def test_nothing_is_left_whenever_all_are_killed(
    make_site: MakeSite, dice: random.Random, root_goes: bool
) -> None:
    """After the next command, within a minute. SCRUN_ROUNDS says how often it is tried."""
    site = make_site("slurm-user", settings="idle_timeout = 5\n", create_timeout=1)
    scratch = staging_in(site)
    with cluster.gate(site.user) as gate:
        for number in range(int(os.environ.get("SCRUN_ROUNDS", "1"))):
            one_round(site, dice, root_goes, scratch, gate, number)
