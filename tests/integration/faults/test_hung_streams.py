"""A container whose standard error hangs, and a supervisor that does."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.harness.disk import Disk
from tests.harness.nightly import nightly
from tests.harness.site import Site
from tests.harness.wait import wait_until

PLACES = pytest.mark.parametrize("site", ["slurm-user", "local-user"], indirect=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with closing(Disk(tmp_path)) as made:
        yield made


def seconds(*words: str) -> float:
    """The best of three: this machine may be busy."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run(words, check=True, capture_output=True, timeout=20)
        took.append(time.monotonic() - began)
    return min(took)


def answered(site: Site, container: str) -> list[float]:
    """How long commands for a container take, in seconds."""
    command = [*site.user.prefix, "env", f"SCRUN_CONFIG={site.environment['SCRUN_CONFIG']}"]
    command += site.command
    asked = (["state", container], ["ps", container], ["kill", container, "0"])
    return [seconds(*command, *words) for words in asked]


def end_from_outside(site: Site, container: str) -> None:
    """End a container so that its standard error says why."""
    if site.engine == "slurm":
        job = json.loads(site.must("state", container))["annotations"]["org.scrun.job_id"]
        subprocess.run(["scancel", job], check=True, timeout=20)
        return
    program = "/reapers/runtime.py"
    [reaper] = [p.pid for p in site.processes() if any(w.endswith(program) for w in p.argv)]
    os.kill(reaper, signal.SIGKILL)


@PLACES
def test_standard_error_on_a_file_system_that_hangs(site: Site, disk: Disk) -> None:
    """What is said there at the end of one container stops none of the others."""
    site.user.give(disk.place)
    errors = disk.place / "errors"
    with errors.open("wb") as file:
        site.user.give(errors)
        bundle = site.bundle_of("sh", "-c", "echo up; exec sleep 1000")
        other = site.life("sleep", "1000").created(60).start(60)
        run = site.popen("run", "--keep", "--bundle", bundle, "one", stderr=file)
        assert run.stdout is not None
        assert run.stdout.readline() == b"up\n"
        usual = answered(site, other.id)  # this machine may be busy
        disk.freeze()
        end_from_outside(site, "one")
        for _ in range(5):
            now = answered(site, other.id)
            assert all(one < max(0.2, 2 * before) for one, before in zip(now, usual, strict=True))
            time.sleep(0.3)
        assert run.wait(30) > 0
        assert '"stopped"' in site.must("state", "one")
        disk.thaw()
        wait_until("the reason", lambda: b"scrun: " in errors.read_bytes())
        run.stdout.close()
        assert run.stdin is not None
        run.stdin.close()
        site.must("delete", "--force", "one")
        other.kill("KILL")
        other.wait(30)
        other.delete(60)


@pytest.fixture
def stopped(site: Site) -> Iterator[Callable[[], int]]:
    """Stops the supervisor, and lets it go on in the end."""
    pids: list[int] = []

    def stop() -> int:
        pids.extend(site.supervisors())
        [pid] = pids
        os.kill(pid, signal.SIGSTOP)
        return pid

    yield stop
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@PLACES
@pytest.mark.parametrize("times", [1, nightly(2)])
def test_a_command_is_ended_while_the_supervisor_does_not_answer(
    site: Site, stopped: Callable[[], int], tmp_path: Path, times: int
) -> None:
    """By the second signal, or by the first one that nobody has taken for ten seconds."""
    other = site.shell("trap 'exit 3' USR1; echo up; while :; do sleep 0.1; done")
    other.created(60).start(60).says("up", 30)
    bundle = site.bundle_of("sh", "-c", "echo up; exec sleep 1000")
    calls = {
        "run": ("run", "--bundle", bundle, "one"),
        "exec": ("exec", other.id, "sh", "-c", "echo up; exec sleep 1000"),
    }
    with ExitStack() as stack:
        processes = {}
        for name, words in calls.items():
            errors = stack.enter_context((tmp_path / name).open("wb"))
            process = processes[name] = site.popen(*words, stderr=errors)
            assert process.stdout is not None
            assert process.stdin is not None
            stack.callback(process.stdin.close)
            stack.callback(process.stdout.close)
            assert process.stdout.readline() == b"up\n"
        supervisor = stopped()
        began = time.monotonic()
        for number in range(times):
            time.sleep(1.2 * bool(number))
            for process in processes.values():
                process.send_signal(signal.SIGTERM)
        for name, process in processes.items():
            assert process.wait(20) == 128 + signal.SIGTERM
            said = (tmp_path / name).read_text()
            assert "SIGTERM was not passed on: the supervisor does not answer" in said
            assert said.count("\n") == 1
        assert (time.monotonic() - began < 8) is (times > 1)
    os.kill(supervisor, signal.SIGCONT)
    wait_until("the end of the container", lambda: '"stopped"' in site.must("state", "one"), 30)
    site.must("delete", "--force", "one")
    other.kill("USR1")
    other.ends(3, 60)


@pytest.mark.parametrize("site", ["slurm-root", "local-root"], indirect=True)
def test_an_event_loop_that_is_blocked_is_noticed(site: Site, disk: Disk) -> None:
    """By what all tests look at in the end; records are written in the event loop."""
    site.root = disk.place / "r"
    site.command[-1] = str(site.root)
    site.shell("exit 3").created(60).delete()
    assert not site.blocked.exists()
    disk.freeze()
    life = site.shell("exit 3")
    wait_until("the stack", site.blocked.exists)
    disk.thaw()
    life.created(60).delete()
    assert "containers/records.py" in site.blocked.read_text()
    site.blocked.unlink()
