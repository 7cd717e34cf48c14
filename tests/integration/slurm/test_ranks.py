"""Containers of several tasks by shims: what each task has, what they share, what fails.

What does not depend on the launch is in test_nodes.py.
"""

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster, users
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.processes import processes, signal_quietly
from tests.harness.site import Site, several_lives
from tests.harness.wait import wait_until, wait_while
from tests.integration.slurm.test_shim import SHIM, directories, srun_of
from tests.integration.slurm.test_shim_bad_cases import (
    kill_and_continue,
    on_its_node,
    with_programs,
)

pytestmark = pytest.mark.covers("guide bundles are not transferred")

FOUR = {"SCRUN_JOB_NUM_NODES": "2", "SCRUN_NTASKS": "4", "SCRUN_NTASKS_PER_NODE": "2"}
TWO = {"SCRUN_JOB_NUM_NODES": "2"}
LABELS = {"SCRUN_LABELIO": "1"}
CLIENT = Path(__file__).parents[2] / "data" / "pmi2.py"


@pytest.fixture(scope="module")
def _site() -> Iterator[Site]:
    with contextlib.closing(Site("slurm", users.ordinary(), settings=SHIM)) as made:
        yield made


@pytest.fixture
def site(_site: Site) -> Iterator[Site]:
    before = directories(_site)
    yield _site
    _site.clear()
    wait_while("shims' directories", lambda: [d for d in directories(_site) if d not in before])


def by_srun(site: Site, *words: str) -> list[str]:
    """What a plain srun prints, in lines."""
    done = subprocess.run(
        [*site.user.prefix, "srun", "-N2", "-n4", "--ntasks-per-node=2", *words],
        env=site.environment, cwd="/", capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return sorted(done.stdout.splitlines())


def shims_of(life: Life) -> dict[int, int]:
    """The pids of the shims of a container, by their tasks' numbers."""
    job = f"SLURM_JOB_ID={life.state()['annotations']['org.scrun.job_id']}"
    found = {}
    for process in processes():
        if job in process.environment and any("supervisor.shim" in w for w in process.argv):
            [number] = [
                word.removeprefix("SLURM_PROCID=")
                for word in process.environment
                if word.startswith("SLURM_PROCID=")
            ]
            found[int(number)] = process.pid
    return found


def with_runtime(site: Site, script: str) -> dict[str, str]:
    """Requests for a container of two tasks whose runtime begins with this script."""
    programs = {name: f'{script}\nexec {shutil.which(name)} "$@"' for name in ("crun", "runc")}
    return {**TWO, **with_programs(site, **programs)}


def test_each_knows_who_it_is(site: Site) -> None:
    script = 'echo "$SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS $SLURMD_NODENAME"'
    life = site.shell(f"{script} $SLURM_TASK_PID", environment=FOUR).created().start()
    assert life.wait() == 0
    said = [line.split() for line in sorted(life.output().splitlines())]
    assert [" ".join(words[:5]) for words in said] == by_srun(site, "sh", "-c", script)
    assert len({words[5] for words in said}) == 4
    assert "launched by 4 shims on node1, node2, with " in site.must("logs", "--messages", life.id)
    assert life.state()["annotations"]["org.scrun.launch"] == "shim"
    life.delete()


def client(site: Site) -> dict[str, Any]:
    """A container that runs the client of PMI2 with this host's Python."""
    config = site.config(sys.executable, "/tmp/pmi2.py")
    home = os.path.realpath(sys.base_prefix)
    for place in dict.fromkeys(["/usr", "/lib", "/lib64", home, sys.prefix]):
        config["mounts"].append(
            {"destination": place, "type": "bind", "source": place, "options": ["rbind", "ro"]}
        )
    config["mounts"].append(
        {"destination": "/tmp/pmi2.py", "type": "bind", "source": str(CLIENT), "options": ["bind"]}
    )
    return config


@pytest.mark.parametrize("environment", [FOUR, nightly({})], ids=["four", "one"])
@pytest.mark.covers("scrun(1) INPUT ENVIRONMENT VARIABLES: requests")
def test_pmi2(site: Site, environment: dict[str, str]) -> None:
    """The descriptor, and a server that answers it, as with a plain srun."""
    asked = {**environment, "SCRUN_MPI_TYPE": "pmi2"}
    life = site.life(config=client(site), environment=asked).created().start()
    assert life.wait() == 0, life.errors()
    tasks = 4 if environment else 1
    values = " ".join(f"of-{number}" for number in range(tasks))
    assert sorted(life.output().splitlines()) == [f"{n} {tasks} {values}" for n in range(tasks)]
    if environment:
        plain = by_srun(site, "--mpi=pmi2", sys.executable, str(CLIENT))
        assert sorted(life.output().splitlines()) == plain
    life.delete()


@pytest.mark.nightly
@pytest.mark.parametrize("environment", [FOUR, nightly({})], ids=["four", "one"])
def test_pmi2_in_a_job_that_has_waited(make_site: MakeSite, environment: dict[str, str]) -> None:
    """The next container has a step of its own: PMI's server serves one program."""
    site = make_site("slurm-user", settings=f"{SHIM}linger = 60\n")
    jobs = set()
    for _ in range(2):
        asked = {**environment, "SCRUN_MPI_TYPE": "pmi2"}
        life = site.life(config=client(site), environment=asked).created().start()
        assert life.wait() == 0, life.errors()
        jobs.add(life.state()["annotations"]["org.scrun.job_id"])
        life.delete()
    assert len(jobs) == 1
    site.must("release", *jobs)


@pytest.mark.parametrize("text", ["a\\n\\nb", nightly("")])
def test_labels_are_those_of_srun(site: Site, text: str) -> None:
    life = site.shell(f"printf '{text}'", environment={**FOUR, **LABELS}).created().start()
    assert life.wait() == 0
    assert sorted(life.output().splitlines()) == by_srun(site, "-l", "printf", text)
    life.delete()


def test_lines_stay_whole(site: Site) -> None:
    """Tasks that write at the same time, in pieces that end within lines."""
    script = "i=0; while [ $i -lt 20000 ]; do echo $SLURM_PROCID-line-$i; i=$((i+1)); done"
    life = site.shell(script, environment=FOUR).created().start()
    assert life.wait(60) == 0
    lines = life.output().splitlines()
    for task in range(4):
        own = [line for line in lines if line.startswith(f"{task}-")]
        assert own == [f"{task}-line-{number}" for number in range(20000)]
    assert len(lines) == 80000
    life.delete()


def test_all_get_the_whole_input(site: Site) -> None:
    """Though one of them closes it at once, and one reads late."""
    script = "case $SLURM_PROCID in 0) exec <&-;; 1) sleep 1;; esac; sha256sum <&0 || echo none"
    data = random.Random(1).randbytes(5_000_000)
    bundle = site.bundle(site.config("sh", "-c", script))
    done = subprocess.run(
        [*site.user.prefix, *site.command, "run", "--bundle", str(bundle), "input"],
        env={**site.environment, **FOUR, **LABELS}, input=data, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    digest = hashlib.sha256(data).hexdigest()
    lines = sorted(done.stdout.decode().splitlines())
    assert lines == ["0: none", *(f"{task}: {digest}  -" for task in (1, 2, 3))], done.stderr


def test_a_reader_that_stops_stops_all(site: Site) -> None:
    bundle = site.bundle(site.config("sh", "-c", "head -c 9000000 /dev/zero; echo done >&2"))
    command = [*site.user.prefix, *site.command, "run", "--bundle", str(bundle), "slow"]
    with subprocess.Popen(
        command, env={**site.environment, **TWO}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.read(1) == b"\0"
        time.sleep(1)
        assert run.poll() is None
        assert len(run.stdout.read()) == 17_999_999
        assert run.wait(30) == 0
        assert run.stderr.read() == b"done\ndone\n"


def test_a_terminal_is_the_first_tasks(site: Site) -> None:
    script = 'test -t 0 && stty size; read x; echo "$SLURM_PROCID: $x"'
    life = site.shell(script, terminal=True, environment=TWO)
    terminal = life.terminal()
    life.created()
    terminal.resize(33, 99)
    life.start()
    terminal.read_until("33 99")
    terminal.write("line\n")
    terminal.read_until("0: line")
    assert life.wait() == 0
    terminal.close()
    life.delete()


def test_what_can_be_done_with_it(site: Site) -> None:
    life = site.shell("echo up; sleep 600", environment=TWO).created().start().says("up", times=2)
    done = site.run("exec", life.id, "sh", "-c", "echo $SLURM_PROCID; exit 5")
    assert (done.returncode, done.stdout, done.stderr) == (5, "0\n", "")
    assert site.must("ps", life.id).count("sleep") == 2
    site.must("pause", life.id)
    assert life.status == "paused"
    site.must("resume", life.id)
    life.kill("KILL")
    life.ends(137)


def test_an_exec_outlives_its_task(site: Site) -> None:
    """It is told of its end all the same."""
    life = site.shell("read x; exit 3", stdin="pipe", environment=TWO).created().start()
    command = [*site.user.prefix, *site.command, "exec", life.id, "sh", "-c", "echo in; sleep 600"]
    with subprocess.Popen(command, env=site.environment, stdout=subprocess.PIPE) as done:
        assert done.stdout is not None
        assert done.stdout.readline() == b"in\n"
        os.write(life.stdin, b"go\n")
        assert done.wait(30) == 137
    life.ends(3)


# Bad cases


def test_a_shim_is_killed(site: Site) -> None:
    """Its task is lost, and so is the container: the other task ends, too."""
    life = site.shell("echo up; sleep 600", environment=TWO).created().start().says("up", times=2)
    signal_quietly(shims_of(life)[1], signal.SIGKILL)
    assert life.wait(40) == 125
    assert "the step of the container's shim ended: task 1 on node2: " in life.errors()
    life.delete()
    several_lives(site)  # the next shim removes what the killed one has left


def test_it_is_no_kill_when_a_shim_was_lost_before(site: Site) -> None:
    """As with one task: what was printed may be lost with the shim."""
    life = site.shell("echo up; sleep 600", environment=TWO).created().start().says("up", times=2)
    srun = srun_of(life)
    os.kill(srun, signal.SIGSTOP)  # so that its end takes a while
    signal_quietly(shims_of(life)[1], signal.SIGKILL)
    time.sleep(1)  # until that is known: nothing tells
    kill_and_continue(site, life, srun)
    assert "the step of the container's shim ended: task 1 on node2: " in life.errors()
    life.delete()
    several_lives(site)


def test_the_job_is_cancelled(site: Site) -> None:
    life = site.shell("echo up; sleep 600", environment=TWO).created().start().says("up", times=2)
    cluster.slurm("scancel", life.job_id)
    assert life.wait(40) != 0
    assert f"job {life.job_id} was cancelled" in life.errors()
    life.delete()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("[ $SLURM_PROCID = 0 ] || exit 1", "node2: no OCI runtime (crun or runc) works there"),
        (
            'case "$SLURM_PROCID $*" in "1 "*" create "*) echo not today >&2; exit 1;; esac',
            "the container could not be created: task 1 on node2: not today",
        ),
    ],
    ids=["no runtime", "create"],
)
def test_one_fails_before_it_begins(site: Site, script: str, said: str) -> None:
    life = site.shell("sleep 600", environment=with_runtime(site, script))
    assert said in life.refused()
    assert life.status == "gone"


def test_one_cannot_be_started(site: Site) -> None:
    script = 'case "$SLURM_PROCID $*" in "1 "*" start "*) echo not now >&2; exit 1;; esac'
    life = site.shell("sleep 600", environment=with_runtime(site, script)).created()
    assert "not now" in life.run("start").stderr
    assert life.wait() != 0
    life.delete()


def test_no_python_on_a_node(site: Site) -> None:
    environment = on_its_node(site, "[ $SLURM_PROCID = 0 ] || echo export PATH=/nothing")
    life = site.life("true", environment={**TWO, **environment})
    assert "the shims could not be started: there is no Python on this node" in life.refused()


def unreached(site: Site) -> dict[str, str]:
    """Variables by which no shim of two tasks can connect."""
    fails = "def fails(*_): raise OSError(113, 'No route to host')"
    code = f"import _socket, sys\n{fails}\n_socket.getaddrinfo = fails; exec(sys.argv[-1])"
    python = f'exec {sys.executable} -ISc "{code}" "$@"'
    return {**TWO, **with_programs(site, python3=python)}


def test_no_connection(site: Site) -> None:
    """Without an oci.conf Slurm would run it, and in no container."""
    said = site.shell("echo up", environment=unreached(site)).refused()
    assert "no connection to the submit host: 127.0.0.1:" in said
    assert "No route to host; srun --container would need an oci.conf on the nodes" in said


def test_a_runtime_hangs_in_create(site: Site) -> None:
    mark = site.base / "b" / "hangs"
    hangs = f": >{mark}; exec sleep 4567890"
    script = f'case "$SLURM_PROCID $*" in "1 "*" create "*) {hangs};; esac'
    life = site.life("true", environment=with_runtime(site, script))
    wait_until("the runtime hangs", mark.exists)
    life.run("delete", "--force")
    assert "was deleted" in life.refused()
    wait_while("what hung", lambda: [p for p in processes() if "4567890" in p.argv], 10)
