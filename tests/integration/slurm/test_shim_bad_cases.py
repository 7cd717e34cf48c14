"""Shims on nodes where something is missing, hangs, is killed, or is used up.

A container is never lost silently: `create` says what is wrong, or the status does.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.processes import processes, signal_quietly
from tests.harness.site import Site, several_lives
from tests.harness.wait import wait_until, wait_while
from tests.integration.slurm.test_shim import SHIM, directories, shim_of, srun_of

EXTERNAL = "_frozen_importlib_external"

pytestmark = pytest.mark.covers("promise a node where something is missing or hangs")


@pytest.fixture
def site(make_site: MakeSite) -> Iterator[Site]:
    made = make_site("slurm-user", settings=SHIM)
    # Slurm may have killed shims of other tests: the next one removes what they left
    before = directories(made)
    yield made
    made.settle(20)
    wait_while("shims' directories", lambda: [d for d in directories(made) if d not in before])


def on_its_node(site: Site, *lines: str) -> dict[str, str]:
    """Requests for a container in whose step these lines are run first.

    They print what a TaskProlog prints: `export NAME=VALUE`.
    """
    path = site.base / "b" / "prolog"
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return {"SCRUN_TASK_PROLOG": str(path)}


def with_programs(site: Site, **programs: str) -> dict[str, str]:
    """Requests for a container whose node has these shell scripts before others in PATH."""
    folder = site.base / "b" / "bin"
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return on_its_node(site, f"echo export PATH={folder}:$PATH")


def with_srun(site: Site, script: str) -> None:
    """Have the site's containers call another srun, and Slurm's other tools."""
    folder = site.base / "b" / "bin"
    folder.mkdir()
    for tool in ("salloc", "scancel", "squeue"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    (folder / "srun").write_text(script)
    (folder / "srun").chmod(0o755)
    conf = Path(site.environment["SCRUN_CONFIG"])
    conf.write_text(conf.read_text() + f'bin = "{folder}"\n')


def hanging(site: Site, verb: str) -> dict[str, str]:
    """Requests for a container whose runtime hangs when it is called for something."""
    mark = site.base / "b" / "hangs"
    hangs = f'case " $* " in *" {verb} "*) : >{mark}; exec sleep 4567890;; esac'
    programs = {name: f'{hangs}\nexec {shutil.which(name)} "$@"' for name in ("crun", "runc")}
    return with_programs(site, **programs)


def hangs(site: Site) -> bool:
    return (site.base / "b" / "hangs").exists()


def nothing_is_left(site: Site, life: Life) -> None:
    """Hold that no process of a container is left on its node, nor files."""
    wait_until(f"{life.id} is gone", lambda: life.status == "gone")
    site.settle(20)
    wait_while("what hung", lambda: [p for p in processes() if "4567890" in p.argv], 10)


def test_no_python(site: Site) -> None:
    environment = on_its_node(site, "echo export PATH=/nothing")
    said = site.life("true", environment=environment).refused()
    assert "the shim could not be started: there is no Python on this node" in said


def test_another_python(site: Site) -> None:
    """It writes other bytecode than ours, and gets the shim's sources."""
    other = f"import sys, {EXTERNAL}; {EXTERNAL}.MAGIC_NUMBER = b'xxxx'; exec(sys.argv[-1])"
    environment = with_programs(site, python3=f'exec {sys.executable} -ISc "{other}" "$@"')
    life = site.life("sh", "-c", "exit 7", environment=environment).created().start()
    life.ends(7)


@pytest.mark.nightly
def test_python_is_too_old(site: Site) -> None:
    old = f"exec {sys.executable} -I -S -c 'import sys; sys.version_info = (3, 5, 2)"
    environment = with_programs(site, python3=f'{old}; exec(sys.argv[-1])\' "$@"')
    said = site.life("true", environment=environment).refused()
    assert "scrun needs Python 3.6 or newer on the node, this is 3.5" in said


@pytest.mark.parametrize("fails", ["exit 1", "exec sleep 4567890"], ids=["fails", "hangs"])
def test_no_runtime_works(site: Site, fails: str) -> None:
    environment = with_programs(site, crun=fails, runc="exit 1")
    said = site.life("true", environment=environment).refused()
    assert "no OCI runtime (crun or runc) works there" in said


def test_no_folder_for_temporary_files(site: Site) -> None:
    """The next best one is taken, which every node has."""
    life = site.shell("echo up", environment=on_its_node(site, "echo export TMPDIR=/proc"))
    assert life.created().start().wait() == 0
    assert life.output() == "up\n"
    life.delete()


def test_the_runtime_hangs_in_create(site: Site) -> None:
    life = site.life("true", environment=hanging(site, "create"))
    wait_until("the runtime hangs", lambda: hangs(site))
    life.run("delete", "--force")
    assert "was deleted" in life.refused()
    nothing_is_left(site, life)


def test_the_runtime_hangs_in_start(site: Site) -> None:
    """`start` waits for it. KILL ends the container all the same."""
    life = site.life("true", environment=hanging(site, "start")).created()
    command = [*site.user.prefix, *site.command, "start", life.id]
    with subprocess.Popen(command, env=site.environment, stderr=subprocess.PIPE) as start:
        wait_until("the runtime hangs", lambda: hangs(site))
        life.kill("KILL", 20)
        assert life.wait(20) == 137
        start.wait(20)
    life.delete()
    nothing_is_left(site, life)


def test_exec_before_start_has_its_answer(site: Site) -> None:
    """The program runs, and may be seen, before the runtime's `start` has ended."""
    slow = 'case " $* " in *" start "*) {0} "$@"; status=$?; sleep 2; exit $status;; esac'
    programs = {
        name: f'{slow.format(shutil.which(name))}\nexec {shutil.which(name)} "$@"'
        for name in ("crun", "runc")
    }
    life = site.shell("echo up; sleep 600", environment=with_programs(site, **programs)).created()
    command = [*site.user.prefix, *site.command, "start", life.id]
    with subprocess.Popen(command, env=site.environment) as start:
        life.says("up")
        assert start.poll() is None
        assert site.must("exec", life.id, "echo", "in") == "in\n"
        assert start.wait(20) == 0
    life.kill("KILL")
    life.ends(137)


def test_the_runtime_hangs_in_delete(site: Site) -> None:
    life = site.shell("echo up", environment=hanging(site, "delete")).created().start()
    began = time.monotonic()
    assert life.wait() == 0
    assert time.monotonic() - began < 5, "the anchor waited for the runtime"
    assert life.output() == "up\n"
    wait_until("the runtime hangs", lambda: hangs(site))
    life.delete(60)
    nothing_is_left(site, life)


def test_a_signal_does_without_the_runtime(site: Site) -> None:
    life = site.shell("sleep 600", environment=hanging(site, "kill")).created().start()
    life.kill("KILL")
    life.ends(137)
    assert not hangs(site)


@pytest.mark.parametrize("who", ["shim", nightly("srun")])
def test_stopped_and_continued(site: Site, who: str) -> None:
    life = (
        site.shell("echo up; read x; echo $x; exit 5", stdin="pipe").created().start().says("up")
    )
    pid = shim_of(life) if who == "shim" else srun_of(life)
    os.kill(pid, signal.SIGSTOP)
    os.write(life.stdin, b"typed meanwhile\n")
    time.sleep(1)
    os.kill(pid, signal.SIGCONT)
    life.ends(5, says="up\ntyped meanwhile\n")


@pytest.mark.parametrize("who", ["shim", nightly("srun")])
def test_stopped_for_good(site: Site, who: str) -> None:
    """KILL ends the container; all the rest waits for who is stopped."""
    life = site.shell("echo up; sleep 600").created().start().says("up")
    os.kill(shim_of(life) if who == "shim" else srun_of(life), signal.SIGSTOP)
    life.kill("KILL", 30)
    life.ends(137, 60)
    several_lives(site)


def test_killed_and_nothing_is_left(site: Site) -> None:
    """The user's next shim on the node ends what a killed one has left running."""
    life = site.shell("echo up; sleep 600").created().start().says("up")
    signal_quietly(shim_of(life), signal.SIGKILL)
    assert life.wait(40) == 125
    assert "the step of the container's shim ended" in life.errors()
    life.delete()
    several_lives(site)


def kill_and_continue(site: Site, life: Life, srun: int) -> None:
    """Kill a container whose shim is lost and whose srun is stopped, and let that go on."""
    command = [*site.user.prefix, *site.command, "kill", life.id, "KILL"]
    with subprocess.Popen(command, env=site.environment) as kill:
        time.sleep(1)
        os.kill(srun, signal.SIGCONT)
        assert kill.wait(20) == 0
    assert life.wait(20) == 125


def test_it_is_no_kill_when_the_shim_was_lost_before(site: Site) -> None:
    """What was printed may be lost with the shim, and a status of 137 would not say so."""
    life = site.shell("echo up; sleep 600").created().start().says("up")
    srun = srun_of(life)
    os.kill(srun, signal.SIGSTOP)  # so that its end takes a while
    signal_quietly(shim_of(life), signal.SIGKILL)
    assert life.output() == "up\n"
    kill_and_continue(site, life, srun)
    assert "the step of the container's shim ended" in life.errors()
    life.delete()
    several_lives(site)


def test_killed_during_an_exec(site: Site) -> None:
    life = site.shell("echo up; sleep 600").created().start().says("up")
    command = [*site.user.prefix, *site.command, "exec", life.id, "sh", "-c", "echo in; sleep 600"]
    with subprocess.Popen(command, env=site.environment, stdout=subprocess.PIPE) as done:
        assert done.stdout is not None
        assert done.stdout.readline() == b"in\n"
        signal_quietly(shim_of(life), signal.SIGKILL)
        assert done.wait(40) == 137
    life.ends(125, 40)
    several_lives(site)


def test_nobody_reads_and_it_never_ends(site: Site) -> None:
    readable, writable = os.pipe()
    try:
        life = site.life("yes", stdout=writable).created().start()
        shim = shim_of(life)
        site.must("exec", life.id, "true")  # nothing else waits for that
        time.sleep(1)
        with open(f"/proc/{shim}/status") as status:
            [memory] = [line.split()[1] for line in status if line.startswith("VmRSS:")]
        assert int(memory) < 60_000
        life.kill("KILL")
        life.ends(137)
    finally:
        os.close(readable)
        os.close(writable)


def narrow(site: Site, ports: str) -> dict[str, str]:
    """The environment with a slurm.conf that has SrunPortRange."""
    folder = site.base / "l" / "etc"
    folder.mkdir()
    text = Path(cluster.slurm_conf()).read_text()
    (folder / "slurm.conf").write_text(f"{text}SrunPortRange={ports}\n")
    return {"SLURM_CONF": str(folder / "slurm.conf")}


def adjacent(stack: ExitStack, count: int) -> tuple[int, list[socket.socket]]:
    """Hold so many ports of which each is the next one's neighbour; return the first."""
    for first in range(14000, 16000, count):
        with ExitStack() as tried:
            try:
                held = [
                    tried.enter_context(socket.create_server(("", first + number)))
                    for number in range(count)
                ]
            except OSError:
                continue
            stack.push(tried.pop_all())
            return first, held
    raise AssertionError("no ports are free")


def test_no_port_for_srun(site: Site) -> None:
    """salloc goes without one, srun does not."""
    with ExitStack() as stack:
        first, _ = adjacent(stack, 3)
        site.environment |= narrow(site, f"{first}-{first + 2}")
        said = site.life("true").refused()
    assert f"all ports in range ({first}, {first + 2}) exhausted" in said


def test_no_port_for_the_direct_connection(site: Site) -> None:
    """What srun leaves is none: streams go over it. With one more, they do not."""
    with ExitStack() as stack:
        first, held = adjacent(stack, 30)
        site.environment |= narrow(site, f"{first}-{first + 29}")
        for number in range(30):
            held[number].close()
            life = site.shell("echo up", container=f"with-{number}")
            if not life.create_status():
                break
        log = site.must("logs", "--messages", life.id)
        assert f"streams go over srun: no port is free in {first}-{first + 29}" in log
        life.start().ends(says="up\n")


def test_a_step_whose_cgroup_was_lost(make_site: MakeSite) -> None:
    """slurmstepd loses one now and then: a second step is tried, once."""
    site = make_site("slurm-user", settings=SHIM)
    count = site.base / "l" / "count"
    count.touch()
    count.chmod(0o666)
    said = "srun: launching StepId=1.0 on host node1, 1 tasks: 0\n"
    said += "srun: error: task 0 launch failed: Slurmd could not execve job\n"
    with_srun(
        site,
        f"#!/bin/sh\n"
        f"for word; do case $word in --error=*) error=${{word#--error=}};; esac; done\n"
        f'[ "$1" = --version ] && exec {shutil.which("srun")} "$@"\n'
        f"echo >>{count}\n"
        f"if [ $(wc -l <{count}) -le ${{LOST:-1}} ]; then\n"
        f'echo "slurmstepd-node1: error: proctrack_g_add: Bad address" >>"$error"\n'
        f"cat >&2 <<EOF\n{said}EOF\nexit 1\nfi\n"
        f'exec {shutil.which("srun")} "$@"\n',
    )
    life = site.shell("echo up").created().start()
    assert life.wait() == 0
    assert life.output() == "up\n"
    log = site.must("logs", "--messages", life.id)
    assert "the node lost the step's cgroup: a second step" in log
    life.delete()
    count.write_text("")
    refused = site.life("true", environment={"LOST": "2"}).refused()
    assert "proctrack_g_add" in refused
    assert count.read_text() == "\n\n"
    site.settle(20)
