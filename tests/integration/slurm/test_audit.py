"""A site's audit: one line for each create, start, exec and end, whoever dies meanwhile."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests import CHECKOUT
from tests.conftest import MakeSite
from tests.harness.audited import Audit, audited
from tests.harness.log_daemons import DAEMONS, PLACES
from tests.harness.podman import RUN, podman_of
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.users import ordinary
from tests.harness.wait import wait_until

pytestmark = [
    pytest.mark.covers("promise an audit of each container"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs an /etc of its own"),
]

SECRET = "hunter2"


@pytest.fixture
def audit() -> Iterator[Audit]:
    """A site with an audit, for this test and its children."""
    with audited() as audit:
        yield audit
        assert SECRET not in (audit.path.read_text() if audit.path.exists() else "")


def events(audit: Audit) -> list[str]:
    return [line["event"] for line in audit.lines()]


@pytest.fixture
def site(audit: Audit, make_site: MakeSite) -> Site:
    return make_site("slurm-user", settings="idle_timeout = 3\n[slurm]\njob_name = '%c'\n")


def test_a_life(site: Site, audit: Audit) -> None:
    config = site.config("sh", "-c", f"# {SECRET}\nread x; exit 3")
    config["process"]["env"] += [f"PASSWORD={SECRET}", "SCRUN_CPUS_PER_TASK=1"]
    (site.rootfs / "mnt").mkdir()
    bind = {"destination": "/mnt", "type": "bind", "source": str(site.base), "options": ["bind"]}
    config["mounts"].append(bind)
    life = site.life(config=config, container="one", stdin="pipe").created().start()
    wait_until("it runs", lambda: "start" in events(audit))  # exec may come while it begins
    site.must("exec", "one", "sh", "-c", f": {SECRET}")
    os.write(life.stdin, b"\n")
    life.ends(3)
    lines = audit.lines()
    assert [line["event"] for line in lines] == ["create", "start", "exec", "end"]
    [keys] = {(line["container"], line["created"], line["uid"]) for line in lines}
    assert (keys[0], keys[2]) == ("one", site.user.uid)
    create, start, executed, end = lines
    assert {*create["requests"]} >= {"cpus_per_task=1", f"job_name={site.base.name}"}
    assert (create["mounts"], create["program"], create["job"]) == ([str(site.base)], "sh", "")
    assert executed["program"] == "sh"
    [where] = {(line["job"], line["nodes"]) for line in (start, executed, end)}
    assert where[0].isdecimal()
    assert where[1].startswith("node")
    assert (end["status"], end["reason"]) == (3, "exited")
    assert end["usage"]["wall"] > 0


def test_one_end_whoever_writes_it(site: Site, audit: Audit) -> None:
    """A successor, or whoever cleans up when keeper and supervisor were killed."""
    one = site.shell("read x; exit 5", stdin="pipe", container="one").created().start()
    two = site.life("sleep", "600", container="two").created()
    wait_until("both are noted", lambda: events(audit).count("create") == 2)
    for pid in site.supervisors():
        os.kill(pid, signal.SIGKILL)
    os.write(one.stdin, b"\n")
    assert one.wait() == 5
    wait_until("its end", lambda: "end" in events(audit))
    for process in site.processes():
        if process.is_supervisor or process.is_keeper:
            signal_quietly(process.pid)
    wait_until("it is told", lambda: site.run("state", "two").returncode in (0, 1))
    two.delete()
    one.delete()
    assert audit.odd() == []
    counted = Counter((line["event"], line["container"]) for line in audit.lines())
    assert counted == {
        ("create", "one"): 1, ("start", "one"): 1, ("end", "one"): 1,
        ("create", "two"): 1, ("end", "two"): 1,
    }  # fmt: skip


def test_what_is_never_made(site: Site, audit: Audit) -> None:
    """One that Slurm refuses has a beginning and an end; a bundle that is wrong has neither."""
    done = site.run("run", "--bundle", str(site.base / "nowhere"), "none")
    assert done.returncode == 1
    assert events(audit) == []
    bundle = site.bundle(site.config("true"))
    asked = {"SCRUN_PARTITION": "nowhere"}
    done = site.run("run", "--bundle", str(bundle), "refused", environment=asked)
    assert done.returncode != 0
    create, end = audit.lines()
    assert (create["event"], end["event"]) == ("create", "end")
    assert end["reason"] != "exited"


def test_a_file_that_cannot_be_written(site: Site, audit: Audit) -> None:
    audit.path.unlink()
    audit.path.mkdir()
    bundle = site.bundle(site.config("true"))
    done = site.run("run", "--bundle", str(bundle), "one")
    said = f"log.audit: {audit.path}: Is a directory"
    assert (done.returncode, done.stderr.splitlines()) == (0, [f"scrun: {said}"])
    audit.wanted("audit_required = true\n")
    assert said in site.fails("run", "--bundle", str(bundle), "two")
    assert not site.jobs()
    shutil.rmtree(audit.path)


def test_a_pool(audit: Audit, make_site: MakeSite) -> None:
    """Slurm knows the pool only; the lines say which containers its job had."""
    site = make_site("slurm-user", settings='idle_timeout = 3\n[slurm]\nlaunch = "shim"\n')
    job = site.must("pool", "start", "mine").split()[-1]
    for name in ("one", "two"):
        bundle = str(site.bundle(site.config("true")))
        done = site.run("run", "--bundle", bundle, name, environment={"SCRUN_POOL": "mine"})
        assert done.returncode == 0, done.stderr
    site.must("pool", "stop", "mine")
    ends = [line for line in audit.lines() if line["event"] == "end"]
    assert [(line["container"], line["job"]) for line in ends] == [("one", job), ("two", job)]


@pytest.mark.parametrize("target", ["syslog", "journald"])
def test_a_daemon(make_site: MakeSite, target: str) -> None:
    """rsyslogd and journald get each line once, and whole; no value of a variable is in one."""
    with audited(*PLACES) as audit, DAEMONS[target]() as daemon:
        audit.wanted(target=target)
        site = make_site("slurm-user", settings="idle_timeout = 3\n")
        config = site.config("sh", "-c", f"# {SECRET}\nread x; exit 3")
        config["process"]["env"] += [f"PASSWORD={SECRET}"]
        mounts = [f"/mnt/{number}-{'x' * 100}" for number in range(40)]
        for place in mounts:
            (site.rootfs / place[1:]).mkdir(parents=True)
            bind = {"destination": place, "source": str(site.base), "options": ["bind"]}
            config["mounts"].append(bind)
        life = site.life(config=config, container="one", stdin="pipe").created().start()
        wait_until("it runs", lambda: len(daemon.lines()) == 2)
        site.must("exec", "one", "sh", "-c", f": {SECRET}")
        os.write(life.stdin, b"\n")
        life.ends(3)
        wait_until("its end", lambda: len(daemon.lines()) == 4)
        lines = daemon.lines()
        assert [line["event"] for line in lines] == ["create", "start", "exec", "end"]
        assert {(line["container"], line["uid"]) for line in lines} == {("one", site.user.uid)}
        assert lines[0]["mounts"] == [str(site.base)] * len(mounts)
        assert lines[-1]["status"] == 3
        assert SECRET not in daemon.text()
        daemon.end()
        bundle = site.bundle_of("true")
        done = site.run("run", "--bundle", bundle, "two")
        [said] = done.stderr.splitlines()
        assert done.returncode == 0
        assert said.startswith(f"scrun: log.audit: {target}: ")
        audit.wanted("audit_required = true\n", target)
        assert f"log.audit: {target}: " in site.fails("run", "--bundle", bundle, "three")


_KEEPS = (
    "from tests.harness.audited import audited\nwith audited() as audit:\n"
    "    print(flush=True)\n    input()\n    print(audit.lines())"
)


def test_two_runs_of_these_tests() -> None:
    """The first one that ends leaves the other one its file."""
    pipe, before = subprocess.PIPE, os.path.exists("/etc/scrun")
    command = [sys.executable, "-c", _KEEPS]
    runs = [
        subprocess.Popen(command, cwd=CHECKOUT, stdin=pipe, stdout=pipe, text=True)
        for _ in range(2)
    ]
    for run in runs:
        assert run.stdout
        assert run.stdout.readline() == "\n"
    assert [run.communicate("\n", timeout=20)[0] for run in runs] == ["[]\n"] * 2
    assert os.path.exists("/etc/scrun") == before


def test_podman(audit: Audit) -> None:
    with podman_of(ordinary()) as podman:
        words = ("--env", f"PASSWORD={SECRET}", "--name", "web", "busybox")
        assert podman.run(*RUN, "--rm", *words, "sh", "-c", "exit 4").returncode == 4
    create, start, end = audit.lines()
    assert [line["event"] for line in (create, start, end)] == ["create", "start", "end"]
    assert {line["name"] for line in (create, start, end)} == {"web"}
    assert create["uid"] == ordinary().uid
    assert (create["image"], create["digest"][:7]) == ("localhost/busybox:latest", "sha256:")
    assert (end["status"], end["reason"]) == (4, "exited")
