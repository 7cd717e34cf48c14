"""containerd, whose runc shim calls scrun, on Slurm."""

import json
import os
from collections.abc import Iterator

import pytest

from tests.harness import cluster
from tests.harness.containerd import IMAGE, Containerd
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise engines and services")


@pytest.fixture(scope="module")
def _containerd() -> Iterator[Containerd]:
    with Containerd() as containerd:
        yield containerd


@pytest.fixture
def containerd(_containerd: Containerd) -> Iterator[Containerd]:
    """A containerd; no container, task, job or record is left."""
    yield _containerd
    _containerd.clear()


def run_options(containerd: Containerd, *more: str) -> tuple[str, ...]:
    return (*containerd.run_options, "--rm", *more, IMAGE)


@pytest.mark.covers("ctr run", "limitation the exit status is lost")
def test_run(containerd: Containerd) -> None:
    script = "echo out; echo err >&2; test $SLURM_JOB_ID && exit 4"
    done = containerd.run(*run_options(containerd), "c1", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (4, "out\n", "err\n")


@pytest.mark.nightly
@pytest.mark.covers("ctr run")
def test_host_network(containerd: Containerd) -> None:
    options = run_options(containerd, "--net-host")
    names = containerd.must(*options, "c2", "ls", "/sys/class/net")
    assert sorted(names.split()) == sorted(os.listdir("/sys/class/net"))


@pytest.mark.covers("ctr run")
def test_a_root_file_system_without_an_image(containerd: Containerd) -> None:
    """ctr gives such a container no PATH, so the program's whole path is needed."""
    rootfs = str(containerd.site.rootfs)
    done = containerd.run(
        *containerd.run_options, "--rm", "--rootfs", rootfs, "c3", "/bin/echo", "hi"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n", "")


@pytest.mark.covers("ctr run")
def test_terminal(containerd: Containerd) -> None:
    terminal, slave = open_terminal()
    script = 'until [ "$(stty size)" = "43 143" ]; do sleep 0.1; done; echo go; read line;'
    script += 'echo "got $line"; exit 5'
    options = run_options(containerd, "--tty")
    given = {"stdin": slave, "stdout": slave, "stderr": slave}
    with containerd.popen(*options, "c4", "sh", "-c", script, **given) as process:
        os.close(slave)
        try:
            terminal.read_until("go", 30)
            terminal.says_got(30)
            assert process.wait(30) == 5
        finally:
            process.kill()
            terminal.close()


@pytest.mark.nightly
@pytest.mark.covers("ctr run")
def test_command_not_found(containerd: Containerd) -> None:
    done = containerd.run(*run_options(containerd), "c5", "no-such-program")
    assert done.returncode == 1
    assert "executable file `no-such-program` not found in $PATH" in done.stderr


def task(containerd: Containerd, container: str) -> str:
    """The status of a task, as `ctr task ls` shows it."""
    for line in containerd.must("task", "ls").splitlines():
        name, _, status = line.split()
        if name == container:
            return status
    return "gone"


@pytest.mark.covers("ctr run")
def test_the_written_files_are_in_the_snapshot(containerd: Containerd) -> None:
    """The shim mounts the snapshot at `rootfs` of the bundle, which the nodes do not see."""
    run = (*containerd.run_options, IMAGE, "c6", "sh", "-c", "echo kept > /file")
    containerd.must(*run)
    [file] = containerd.base.glob("d/io.containerd.snapshotter.v1.native/snapshots/*/file")
    assert file.read_text() == "kept\n"
    containerd.must("container", "rm", "c6")


@pytest.mark.covers("ctr task kill, task rm, task ls")
def test_kill_and_rm_of_a_task(containerd: Containerd) -> None:
    script = "trap 'exit 5' TERM; while :; do sleep 0.1; done"
    containerd.must(*containerd.run_options, "--detach", IMAGE, "c7", "sh", "-c", script)
    user = containerd.site.user
    wait_until("its job", lambda: "RUNNING" in str(cluster.jobs(user, containerd.base.name)))
    assert task(containerd, "c7") == "RUNNING"
    containerd.must("task", "kill", "c7")
    wait_until("it has stopped", lambda: task(containerd, "c7") == "STOPPED")
    again = containerd.run("task", "kill", "c7")
    assert "not found" in again.stderr  # the words of runc for it
    assert "exit code 5" in containerd.run("task", "rm", "c7").stderr
    containerd.must("container", "rm", "c7")


@pytest.fixture(scope="module")
def running(_containerd: Containerd) -> Iterator[Containerd]:
    """A containerd with a container called shared, for the tests that leave it as it was."""
    options = (*_containerd.run_options, "--detach", IMAGE)
    _containerd.must(*options, "shared", "sh", "-c", "exec sleep 600")
    yield _containerd
    _containerd.must("task", "kill", "--signal", "KILL", "shared")
    wait_until("it has stopped", lambda: task(_containerd, "shared") == "STOPPED")
    _containerd.run("task", "rm", "shared")
    _containerd.must("container", "rm", "shared")


@pytest.mark.covers("ctr task exec", "limitation exec is not supported")
def test_exec_in_a_task(running: Containerd) -> None:
    done = running.run("task", "exec", "--exec-id", "e1", "shared", "sh", "-c", "echo in; exit 6")
    assert (done.returncode, done.stdout) == (6, "in\n")


@pytest.mark.covers("ctr task ps")
def test_ps_of_a_task(running: Containerd) -> None:
    lines = running.must("task", "ps", "shared").splitlines()
    assert lines[0].split() == ["PID", "INFO"]
    assert len(lines) > 1
    assert all(line.split()[0].isdecimal() for line in lines[1:])


@pytest.mark.covers("ctr task pause, task resume", "limitation pause is not supported")
def test_pause_and_resume_of_a_task(running: Containerd) -> None:
    running.must("task", "pause", "shared")
    assert task(running, "shared") == "PAUSED"
    running.must("task", "resume", "shared")
    assert task(running, "shared") == "RUNNING"


@pytest.mark.covers("ctr task metrics")
def test_metrics_are_of_the_submit_host(running: Containerd) -> None:
    """The shim reads the cgroup of the process in the pid file itself."""
    assert "shared" in running.must("task", "metrics", "shared")


@pytest.mark.covers("ctr containers info, images")
def test_info_of_a_container(running: Containerd) -> None:
    info = json.loads(running.must("container", "info", "shared"))
    assert info["Runtime"]["Name"] == "io.containerd.runc.v2"
