"""Containers outlive their supervisor, wherever they run (docs/decisions/adoption.md).

What only one kind of them has is tested in `test_adopted_here`, `slurm/test_adoption` (by shims)
and `slurm/test_adoption_srun`.
"""

import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import (
    BY_SRUN,
    COUNT,
    UNTIL_TOLD,
    adopted,
    adoptions,
    asked_again,
    at,
    end,
    kill_all_supervisors,
    kill_now_and_then,
    kill_supervisor,
    numbers,
    output,
    row,
    told,
    written,
)
from tests.harness.nightly import nightly, often
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

_KILL = """
RunTimeQuery="runc --root={state} state %j.%t"
RunTimeKill="runc --root={state} kill %j.%t TERM"
RunTimeDelete="runc --root={state} delete --force %j.%t"
"""
_RUN = f"""{_KILL}RunTimeRun="runc --root={{state}} run --bundle=%b %j.%t"
"""
_CREATE = f"""{_KILL}RunTimeCreate="runc --root={{state}} create --bundle=%b %j.%t"
RunTimeStart="runc --root={{state}} start %j.%t"
"""

HERE = ("local-root", "local-user")
BY_COMMANDS = {"RunTimeRun": _RUN, "RunTimeCreate": _CREATE}
"""By an oci.conf on this machine."""


@pytest.fixture
def site(request: pytest.FixtureRequest, make_site: MakeSite, tmp_path: Path) -> Site:
    """A place with a supervisor of its own."""
    if request.param in BY_COMMANDS:
        return _by_commands(make_site, tmp_path, BY_COMMANDS[request.param])
    if request.param == "srun":
        return make_site("slurm-user", settings=BY_SRUN)
    return make_site("slurm-user" if request.param == "shim" else request.param)


def _by_commands(make_site: MakeSite, place: Path, text: str) -> Site:
    conf = place / "oci.conf"
    conf.write_text(text.format(state=place / "state"))
    return make_site("local-root", settings=f'[local]\noci_conf = "{conf}"\n')


@at(*HERE, "RunTimeCreate", "shim", "srun", then=["RunTimeRun"])
def test_one_that_runs_goes_on(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    for times in (1, 2):
        kill_supervisor(site)
        assert life.state()["status"] == "running"
        adopted(life, times=times)
    assert life.state()["pid"] == life.anchor
    assert site.must("exec", life.id, "echo", "in it") == "in it\n"
    life.kill("USR1")
    assert life.wait(20) == 7
    assert life.state()["annotations"]["org.scrun.exit_status"] == "7"
    end(life)


@at(*HERE, "shim", then=["srun"])
def test_one_that_was_created_is_started(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created(60)
    for _ in range(2):
        kill_supervisor(site)
        assert life.state()["status"] == "created"
    life.start(60).says("up", 30)
    kill_supervisor(site)
    told(life)


@at("shim", then=[*HERE, "srun"])
def test_what_was_done_without_an_answer_is_no_error(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created()
    asked_again(life)
    told(life)


@at("local-user", then=[*BY_COMMANDS, "srun"])
def test_start_at_the_same_moment(site: Site, dice: random.Random) -> None:
    """It is started once, whoever does it, and `start` does not fail."""
    for _ in range(often(2, 16)):
        life = site.shell(f"echo begun; {UNTIL_TOLD}").created(60)
        starting = site.popen("start", life.id)
        time.sleep(dice.uniform(0, 0.2 if site.engine == "slurm" else 0.12))
        kill_all_supervisors(site)
        assert (starting.communicate(timeout=60), starting.returncode) == ((b"", b""), 0)
        life.says("up", 30)
        life.kill("USR1")
        assert life.wait(30) == 7
        assert output(life) == b"begun\nup\n"
        life.delete(60)
    site.settle(20)


@at(*HERE, "RunTimeRun", "shim", then=["RunTimeCreate", "srun"])
@pytest.mark.parametrize("status", [9, nightly(0)])
def test_one_that_ends_meanwhile_has_its_status(site: Site, status: int) -> None:
    """Nobody was there to hear of it."""
    waits = "echo up; until [ -e /gate ]; do sleep 0.01; done; echo bye"
    life = site.shell(f"{waits}; exit {status}").created(60).start(60).says("up", 30)
    supervisor = site.stopped_supervisor()
    (site.rootfs / "gate").touch()
    time.sleep(2)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(30) == status
    assert output(life) == b"up\nbye\n"
    wait_until("it is known", lambda: life.status == "stopped")
    assert life.state()["annotations"]["org.scrun.exit_status"] == str(status)
    end(life)


@at("RunTimeRun", "shim", then=["RunTimeCreate", "srun"])
def test_no_byte_is_lost_or_doubled_however_often_it_dies(site: Site, dice: random.Random) -> None:
    """At any moment: while it reads, writes, or adopts."""
    life = site.shell(COUNT.format(300_000)).created(60).start(60)
    kill_now_and_then(site, dice, 6)
    assert life.wait(90) == 7
    assert output(life) == numbers(300_000)
    if site.engine == "slurm":
        assert adoptions(life)
    end(life)


@at("shim", "srun")
@pytest.mark.parametrize("stream", [nightly("stdout"), "stderr"])
def test_output_to_a_file(site: Site, dice: random.Random, stream: str) -> None:
    """Beside srun a `cat` writes standard error, which outlives the supervisor, too."""
    path = site.base / "l" / "output"
    script = COUNT.format(100_000)
    if stream == "stderr":
        script = f"exec >&2; {script}"
    with path.open("wb") as file:
        to = {stream: file.fileno()}
        life = site.shell(script, **to).created(60).start(60)
    kill_now_and_then(site, dice, 4)
    assert life.wait(60) == 7
    assert path.read_bytes() == numbers(100_000)
    path.unlink()
    end(life)


@pytest.mark.parametrize(
    ("site", "kind"),
    [row("shim", kind) for kind in ("pipe", "file")]
    + [row("shim", "socket", then=True), row("srun", "pipe", then=True)],
    indirect=["site"],
)
def test_input_arrives_once_however_often_it_dies(
    site: Site, dice: random.Random, kind: str
) -> None:
    """Lines go in and come back, and the end of the input ends the container."""
    data = numbers(150_000)
    if kind == "pipe":
        stdin, to = os.pipe()
    elif kind == "socket":
        stdin, to = (one.detach() for one in socket.socketpair())
    else:
        path = site.base / "l" / "input"
        path.write_bytes(data)
        stdin, to = os.open(path, os.O_RDONLY), os.open("/dev/null", os.O_WRONLY)
    life = site.shell("while read n; do echo $n; done; exit 7", stdin=stdin).created(60).start(60)
    os.close(stdin)
    with written(to, data):
        kill_now_and_then(site, dice, 6)
        assert life.wait(90) == 7
    assert output(life) == data
    assert adoptions(life)
    if kind == "file":
        path.unlink()
    end(life)


@pytest.mark.parametrize(
    ("site", "terminal"),
    [row("shim", False, then=True), row("shim", True), row("srun", False, then=True)],
    indirect=["site"],
)
def test_the_output_of_a_detached_run(site: Site, dice: random.Random, terminal: bool) -> None:
    """It goes into the record, whoever puts it there."""
    script = "stty -onlcr; " if terminal else ""
    bundle = site.bundle_of("sh", "-c", script + COUNT.format(150_000), terminal=terminal)
    site.must("run", "--detach", "--bundle", bundle, "one", timeout=60)
    kill_now_and_then(site, dice, 6)
    wait_until("its end", lambda: '"stopped"' in site.must("state", "one"), 60)
    assert site.must("logs", "one").encode() == numbers(150_000)
    assert "this one goes on" in site.must("logs", "--messages", "one")
    assert '"org.scrun.exit_status": "7"' in site.must("state", "one")
    site.must("delete", "--force", "one")
    site.settle(20)


@at(*HERE, then=["srun"])
def test_run_in_the_foreground_goes_on(site: Site, dice: random.Random) -> None:
    """With all of its output and its status."""
    running = site.popen("run", "--bundle", site.bundle_of("sh", "-c", COUNT.format(100_000)), "a")
    assert running.stdout
    first = os.read(running.stdout.fileno(), 1)
    kill_now_and_then(site, dice, 4)
    out, _ = running.communicate(timeout=90)
    assert running.returncode == 7
    assert first + out == numbers(100_000)
    site.settle(20)


@at("shim", then=["srun"])
def test_its_job_is_cancelled_meanwhile(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    [job] = site.jobs()
    supervisor = site.stopped_supervisor()
    cluster.slurm("scancel", job.split()[0])
    time.sleep(1)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(60) == 122
    assert life.state()["annotations"]["org.scrun.reason"] == "cancelled"
    end(life)


@at("RunTimeRun", "srun", then=["RunTimeCreate"])
def test_both_are_killed(site: Site) -> None:
    """Supervisor and keeper at once: all ends with them."""
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    site.kill_supervisors()
    life.ends(125, 60)
    site.settle(30)


# By the commands of an oci.conf


@at("RunTimeCreate", then=["RunTimeRun"])
def test_it_is_run_by_the_commands_of_its_time(site: Site, tmp_path: Path) -> None:
    """Those of its successor may be other ones, or wrong."""
    running = site.shell(UNTIL_TOLD).created().start().says("up")
    created = site.shell(UNTIL_TOLD).created()
    (tmp_path / "oci.conf").write_text('RunTimeRun="false"\nRunTimeDelete="true"\n')
    kill_supervisor(site)
    created.start().says("up")
    told(running, created)


@at("RunTimeRun", then=["RunTimeCreate"])
@pytest.mark.parametrize("command", ["kill", "delete"])
def test_it_is_ended_by_force(site: Site, command: str) -> None:
    life = site.shell(UNTIL_TOLD).created().start().says("up")
    kill_supervisor(site)
    if command == "kill":
        adopted(life)
        life.kill("KILL")
    else:
        life.delete()
    assert life.wait(20) == 137
    if command == "kill":
        life.delete()
    site.settle(20)


def test_both_are_killed_and_its_removal_ends_nothing(make_site: MakeSite, tmp_path: Path) -> None:
    """The command in whose foreground it runs is told to end."""
    text = _RUN.replace("runc --root={state} delete --force %j.%t", "true")
    site = _by_commands(make_site, tmp_path, text)
    script = "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done"
    life = site.shell(script).created().start().says("up")
    site.kill_supervisors()
    assert life.wait(20) == 125
    wait_while("runc", lambda: [one for one in site.processes() if "runc" in one.argv[0]], 20)
    end(life)


@pytest.mark.parametrize("dies", [nightly("never"), "before", "meanwhile"])
def test_a_signal_waits_for_the_start(make_site: MakeSite, tmp_path: Path, dies: str) -> None:
    """Before it, the signal would hit the runtime's code."""
    starting, gate = tmp_path / "starting", tmp_path / "gate"
    first = f"touch {starting}; until [ -e {gate} ]; do sleep 0.05; done; "
    site = _by_commands(make_site, tmp_path, _CREATE.replace('Start="', f'Start="{first}'))
    life = site.shell(UNTIL_TOLD).created()
    if dies == "before":
        kill_supervisor(site)
    start = site.popen("start", life.id)
    wait_until("RunTimeStart", starting.exists, 20)
    if dies == "meanwhile":
        kill_supervisor(site)
        adopted(life)
    kill = site.popen("kill", life.id, "CONT")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            kill.wait(2)
    finally:
        gate.touch()
    for one in (start, kill):
        assert (one.communicate(timeout=30), one.returncode) == ((b"", b""), 0)
    life.says("up")
    kill_supervisor(site)
    told(life)
