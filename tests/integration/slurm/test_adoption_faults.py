"""Containers are adopted while something else breaks, and many at once."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial

import pytest

from scrun.protocol import wire
from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import (
    COUNT,
    UNTIL_TOLD,
    adoptions,
    end,
    kill_supervisor,
    numbers,
    output,
    told,
)
from tests.harness.life import Life
from tests.harness.places import mounted
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.by_shim

_MANY = int(os.environ.get("SCRUN_ADOPTED", "8"))


def running(site: Site) -> Life:
    return site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)


def answers(life: Life) -> bool:
    """Whether its supervisor has it, and works with it; without the time that a command takes."""
    try:
        sock = wire.connect_supervisor(str(life.site.root / life.id), "supervisor")
    except OSError:
        return False
    with closing(sock), suppress(OSError):
        wire.send(sock, [b"kill", life.id.encode(), b"0"])
        return wire.receive(sock)[0] == 0
    return False


def test_the_record_directory_is_full(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    site.root.mkdir(mode=0o700)
    options = f"size=1m,uid={site.user.uid},gid={site.user.gid},mode=700"
    with mounted(site.root, "-o", options):
        life = running(site)
        filler = site.root / "@filler"
        with filler.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        assert os.statvfs(site.root).f_bavail == 0
        kill_supervisor(site)
        wait_until("another", site.supervisors, 20)
        assert site.must("exec", life.id, "echo", "in it") == "in it\n"
        assert life.state()["status"] == "running"
        filler.unlink()
        life.kill("USR1")
        life.ends(7, 60)
        site.must("supervisor", "stop", "--all")


@pytest.mark.parametrize("daemon", ["controller", "munge"])
def test_a_daemon_of_the_cluster_is_away(make_site: MakeSite, daemon: str) -> None:
    """The shim knows who comes by its own secret."""
    site = make_site("slurm-user")
    life = running(site)
    with cluster.without(daemon):
        kill_supervisor(site)
        wait_until("it is adopted", lambda: adoptions(life), 30)
        assert site.must("exec", life.id, "echo", "in it") == "in it\n"
        assert life.state()["status"] == "running"
    told(life)


def of_shims(site: Site, program: str) -> list[int]:
    """The processes that are shims ("python"), or bring them to their nodes ("srun")."""
    shims = (process for process in site.processes() if process.has_shim)
    return [one.pid for one in shims if os.path.basename(one.argv[0]).startswith(program)]


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Processes that do nothing."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # it was killed meanwhile
                os.kill(pid, signal.SIGCONT)


def adopter(life: Life) -> int:
    """The supervisor that its record names."""
    state = json.loads((life.site.root / life.id / "state.json").read_text())
    return int(state["supervisor"]["pid"])


def is_of(life: Life, supervisor: int) -> bool:
    """Whether the record names a supervisor."""
    return adopter(life) == supervisor


def test_killed_twice_while_it_adopts(make_site: MakeSite) -> None:
    """It has the record, and waits for the shim, which is stopped; nothing is lost or doubled."""
    site = make_site("slurm-user")
    life, waits = running(site), site.shell(UNTIL_TOLD).created(60)
    counts = site.shell(COUNT.format(200_000)).created(60).start(60)
    with stopped(*of_shims(site, "python")):
        for _ in range(3):
            before = adopter(life)
            kill_supervisor(site)
            for one in (life, waits, counts):
                wait_while("the one before", partial(is_of, one, before), 30)
            assert life.state()["status"] == "running"
            assert waits.state()["status"] == "created"
            assert not adoptions(life)
    wait_until("it is adopted", lambda: adoptions(life) == 1, 30)
    assert counts.wait(90) == 7
    assert output(counts) == numbers(200_000)
    waits.start(60).says("up", 30)
    counts.delete(60)
    told(life, waits)


def test_killed_before_it_adopts(make_site: MakeSite) -> None:
    """As soon as it is there, several times."""
    site = make_site("slurm-user")
    life = running(site)
    for _ in range(4):
        kill_supervisor(site)
    assert life.state()["status"] == "running"
    assert site.must("exec", life.id, "echo", "in it") == "in it\n"
    told(life)


def test_srun_died_meanwhile(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    life = running(site)
    [supervisor] = site.supervisors()
    with stopped(supervisor):
        # the other one is its child, and has Slurm end the step when it dies
        os.kill(min(of_shims(site, "srun")), signal.SIGKILL)
        wait_while("the shim", lambda: of_shims(site, "python"), 30)
        os.kill(supervisor, signal.SIGKILL)
    assert life.wait(60) == 125
    assert life.state()["annotations"]["org.scrun.reason"] == "scrun-failure"
    assert "shim" in life.state()["annotations"]["org.scrun.message"]
    end(life)


@pytest.mark.timeout(300)
def test_its_node_died_meanwhile(make_site: MakeSite) -> None:
    """slurmctld notices that after SlurmdTimeout."""
    site = make_site("slurm-user")
    life = running(site)
    [supervisor] = site.supervisors()
    with cluster.failed(cluster.node_of(life.job_id)):
        with stopped(supervisor):
            wait_while("its job", lambda: [job for job in site.jobs() if "RUNNING" in job], 120)
            os.kill(supervisor, signal.SIGKILL)
        assert life.wait(60) == 120
        assert life.state()["annotations"]["org.scrun.reason"] == "node-failure"
    life.delete(60)
    site.settle(20, completing=60)


def test_the_root_directory_was_removed_before(make_site: MakeSite) -> None:
    """Its supervisor has made it again, so there is something to adopt."""
    site = make_site("slurm-user")
    life = running(site)
    shutil.rmtree(site.root)
    wait_until("the record", (site.root / life.id / "state.json").exists, 20)
    kill_supervisor(site)
    assert life.state()["status"] == "running"
    wait_until("it is adopted", lambda: adoptions(life), 30)
    told(life)


def test_the_root_directory_goes_with_the_supervisor(make_site: MakeSite) -> None:
    """Nothing says any more what the containers are: they end, and their job is given back."""
    site = make_site("slurm-user")
    life = running(site)
    [supervisor] = site.supervisors()
    with stopped(supervisor):
        shutil.rmtree(site.root)
        os.kill(supervisor, signal.SIGKILL)
    assert life.wait(30) == 125
    site.settle(30)


def test_two_commands_find_it_dead(make_site: MakeSite) -> None:
    """And each of them is answered, by one supervisor."""
    site = make_site("slurm-user")
    created, life = site.shell(UNTIL_TOLD).created(60), running(site)
    kill_supervisor(site)
    commands = [
        site.popen("exec", life.id, "echo", "in it"),
        site.popen("start", created.id, stdio=subprocess.DEVNULL),
        site.popen("kill", life.id, "0", stdio=subprocess.DEVNULL),
    ]
    assert commands[0].communicate(timeout=60)[0] == b"in it\n"
    assert [command.wait(60) for command in commands] == [0, 0, 0]
    assert len(site.supervisors()) == 1
    created.says("up", 30)
    told(created, life)


@pytest.mark.timeout(400)
def test_many_at_once(make_site: MakeSite) -> None:
    """`state` is right at any moment; SCRUN_ADOPTED says how many, and -s shows how long."""
    site = make_site("slurm-user")
    with ThreadPoolExecutor(4) as threads:
        lives = list(threads.map(lambda _: running(site), range(_MANY)))
    for again in (1, 2):
        began = time.monotonic()
        kill_supervisor(site)
        assert lives[-1].state()["status"] == "running"
        rows = json.loads(site.must("list", "--format", "json"))
        assert [row["status"] for row in rows] == ["running"] * _MANY
        for life in lives:
            wait_until("an answer", partial(answers, life), 60)
        print(f"adoption {again} of {_MANY}: {time.monotonic() - began:.2f} s")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(adoptions, lives)) == [2] * _MANY
    told(*lives)
