"""Containers that a shim makes: what differs from `srun --container`, and what may not.

Statuses, signals and interrupts are in `commands/test_scenario`, which runs by each launch.
"""

import glob
import hashlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.processes import processes, shims_of, signal_quietly
from tests.harness.shim import FOLDERS
from tests.harness.site import Site, several_lives
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.shares_sites

SHIM = 'idle_timeout = 20\n[slurm]\nlaunch = "shim"\n'
MIB = 1 << 20


@pytest.fixture(params=["slurm-root", "slurm-user"])
def site(request: pytest.FixtureRequest, make_site: MakeSite) -> Iterator[Site]:
    made = make_site(request.param, settings=SHIM)
    yield made
    made.settle()
    if made.user.uid:  # root's may be those of other runs
        wait_while("directories of shims", lambda: directories(made), 10)


def directories(site: Site) -> list[str]:
    """What shims of the site's user have on the nodes, which are this machine."""
    return [path for folder in FOLDERS for path in glob.glob(f"{folder}/scrun-{site.user.uid}-*")]


def shim_of(life: Life) -> int:
    """The pid of the shim that holds a container."""
    job = life.job_id
    [pid] = wait_until("the shim", lambda: shims_of(job))
    return pid


def srun_of(life: Life) -> int:
    """The pid of the srun whose step is a container's shim."""
    name = f"--jobid {life.state()['annotations']['org.scrun.job_id']} "
    pid, *_ = [  # the second one is its own helper
        process.pid
        for process in sorted(processes(), key=lambda process: process.pid)
        if os.path.basename(process.argv[0]) == "srun"
        and name in f"{' '.join(process.argv)} "
        and any("scrun.supervisor.shim" in word for word in process.argv)
    ]
    return pid


def salloc_of(site: Site) -> int:
    """The pid of the salloc of a site that has one container."""
    [pid] = [
        process.pid
        for process in processes()
        if os.path.basename(process.argv[0]) == "salloc" and process.mentions(site.base.name)
    ]
    return pid


def test_lives(site: Site) -> None:
    several_lives(site)


@pytest.mark.covers("promise jobs that are taken away")
def test_its_own_status_comes_before_slurms_words(site: Site) -> None:
    life = site.shell("trap 'echo told; exit 33' TERM; echo up; while :; do sleep 0.05; done")
    life.created().start().says("up")
    # both know it, and are late on a host that is busy
    late = [srun_of(life), salloc_of(site)]
    for pid in late:
        os.kill(pid, signal.SIGSTOP)
    try:
        cluster.slurm("scancel", life.job_id)
        life.says("told")
        time.sleep(0.5)  # the shim says it at once, by its own connection
    finally:
        for pid in late:
            os.kill(pid, signal.SIGCONT)
    assert life.wait() == 122
    assert f"job {life.job_id} was cancelled" in life.errors()
    life.delete()


def test_create_reports_the_runtimes_error(site: Site) -> None:
    config = site.config("true")
    config["mounts"].append(
        {"destination": "/x", "type": "nothing-of-the-kind", "source": "nothing"}
    )
    life = site.life(config=config)
    assert "nothing-of-the-kind" in life.refused() or "mount" in life.refused()


def test_what_the_log_says(site: Site) -> None:
    life = site.life("sleep", "600").created().start()
    log = site.must("logs", "--messages", life.id)
    assert "launched by a shim on node" in log
    assert "streams go over srun" not in log
    assert life.state()["annotations"]["org.scrun.launch"] == "shim"
    life.kill("KILL")
    life.wait()
    life.delete()


def test_signals_and_exec(site: Site) -> None:
    life = site.shell("trap 'echo term' TERM; echo up; while :; do sleep 0.1; done")
    life.created().start()
    life.says("up")
    life.kill("TERM")
    life.says("term")
    done = site.run("exec", life.id, "sh", "-c", "echo in; echo err >&2; exit 5")
    assert (done.returncode, done.stdout, done.stderr) == (5, "in\n", "err\n")
    missing = site.run("exec", life.id, "/no/such/program")
    assert missing.returncode == 127
    assert "pid" in site.must("state", life.id)
    assert "sleep" in site.must("ps", life.id)
    site.must("pause", life.id)
    assert life.status == "paused"
    site.must("resume", life.id)
    life.kill("KILL")
    life.ends(137)


def test_its_variables(site: Site) -> None:
    life = site.shell('echo "$SLURM_JOB_ID $SLURM_PROCID $SLURM_NTASKS"').created()
    job = life.state()["annotations"]["org.scrun.job_id"]
    life.start()
    life.ends(says=f"{job} 0 1\n")


@pytest.mark.parametrize("count", [0, 1, 20 * MIB + 13])
def test_bytes_through_a_container(site: Site, count: int) -> None:
    data = random.Random(1).randbytes(count)
    command = [*site.user.prefix, *site.command, "run", "--bundle"]
    bundle = site.bundle(site.config("cat"))
    done = subprocess.run(
        [*command, str(bundle), "bytes"], env=site.environment, input=data, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_a_reader_that_stops_stops_the_writer(site: Site) -> None:
    bundle = site.bundle(site.config("sh", "-c", "head -c 40000000 /dev/zero; echo done >&2"))
    command = [*site.user.prefix, *site.command, "run", "--bundle", str(bundle), "slow"]
    with subprocess.Popen(
        command, env=site.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.read(1) == b"\0"
        said: list[bytes] = []
        reader = threading.Thread(target=lambda: said.append(run.stderr.read()))  # type: ignore[union-attr]
        reader.start()
        time.sleep(1)
        assert run.poll() is None
        assert said == []
        assert len(run.stdout.read()) == 39_999_999
        assert run.wait(30) == 0
        reader.join(30)
        assert said == [b"done\n"]


def test_a_terminal(site: Site) -> None:
    sized = 'until [ "$(stty size)" = "41 123" ]; do sleep 0.05; done; echo resized'
    life = site.shell(f"tty; stty size; {sized}; read x; echo $x", terminal=True)
    terminal = life.terminal()
    life.created()
    terminal.resize(33, 99)
    life.start()
    terminal.read_until("/dev/pts/0")
    terminal.read_until("33 99")
    terminal.resize(41, 123)
    terminal.read_until("resized")
    terminal.write("line\n")
    terminal.read_until("line")
    assert life.wait() == 0
    terminal.close()
    life.delete()


@pytest.mark.parametrize("who", ["shim", "srun"])
def test_killed_while_it_runs(site: Site, who: str) -> None:
    life = site.shell("echo up; sleep 600").created().start().says("up")
    signal_quietly(shim_of(life) if who == "shim" else srun_of(life), signal.SIGKILL)
    status = life.wait(40)
    assert status in (125, 137)  # what salloc or srun say of it decides
    assert status == 125 or "out of memory" not in life.errors()
    life.delete()
    several_lives(site)  # the next shim removes the directory of one that was killed
