"""Rootless podman on Slurm: the runtime inside podman's user namespace."""

import json
import os
import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.nightly import nightly, often
from tests.harness.podman import RUN, Podman
from tests.harness.program import run_program
from tests.harness.script import manual
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("guide no network of its own: host", "promise rootless podman")


@pytest.mark.covers("podman run")
@pytest.mark.covers("limitation needs a hand-written scrun.lua")
@pytest.mark.covers("limitation the exit status is lost")
@pytest.mark.covers("guide Types: Podman")
@pytest.mark.parametrize("status", [nightly(0), 7])
def test_run(podman: Podman, status: int) -> None:
    script = f"echo out; echo err >&2; exit {status}"
    done = podman.run(*RUN, "--rm", "busybox", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (status, "out\n", "err\n")


@pytest.mark.covers("scrun(1) OUTPUT ENVIRONMENT VARIABLES")
@pytest.mark.covers("limitation --security-opt (label, seccomp")
def test_it_runs_on_the_cluster(podman: Podman) -> None:
    variables = podman.must(*RUN, "--rm", "busybox", "env")
    assert "SLURM_JOB_ID=" in variables
    assert "SCRUN_" not in variables


def test_in_a_job(podman: Podman) -> None:
    """podman passes no variables on: it is asked for those of its job, and of its task."""
    script = "echo $SLURM_JOB_ID $SLURM_STEP_ID $SLURM_PROCID $SLURMD_NODENAME"
    words = [*podman.command, *RUN, "--rm", "busybox", "sh", "-c"]
    of_plain = shlex.join(["sh", "-c", f"sleep 1; {script}"])
    of_task = shlex.join([*words, f"sleep 1; {script}"])  # side by side
    inside = f"srun {of_plain}; srun {of_task}; {shlex.join([*words, script])}"
    batch = podman.site.base / "b" / "batch"
    batch.write_text(f"#!/bin/sh\n{inside}\n")
    out = podman.site.base / "b" / "out"
    argv = ["sbatch", "--quiet", "--wait", "-N2", "-n4", f"--output={out}"]
    argv += [f"--job-name={podman.site.base.name}", str(batch)]
    done = run_program(
        [*podman.prefix, *argv],
        env={**podman.environment, "SLURM_CONF": cluster.slurm_conf()},
        cwd=podman.site.base / "b",
        timeout=90,
    )
    assert done.returncode == 0, done.stderr + out.read_text()
    said = out.read_text().splitlines()  # podman's pause process holds the step for a moment
    lines = [line.split() for line in said if not line.startswith("srun:")]
    plain, tasks, last = lines[:4], lines[4:8], lines[8:]
    assert sorted(line[2:] for line in plain) == sorted(line[2:] for line in tasks), lines
    assert {line[1] for line in tasks} == {"1"}
    assert len({line[0] for line in lines}) == 1
    assert last[0][1:] == ["2", "0", last[0][3]]


def test_seccomp_rules_are_runcs_for_the_first_and_the_next(podman: Podman) -> None:
    """A shim gives crun the filter that it has compiled for the container before."""
    tries = "grep Seccomp: /proc/self/status; unshare true; hostname x; mount -t tmpfs x /mnt"
    words = (*RUN, "--rm", "busybox", "sh", "-c", f"exec 2>&1; {tries}; chmod 700 /tmp; echo $?")
    with_runc = podman.must("--runtime", "runc", *words)
    assert "Seccomp:\t2" in with_runc
    for options in ((), (), ("--security-opt", "seccomp=unconfined"), ()):
        said = podman.must(*RUN, *options, *words[len(RUN) :])
        assert (said == with_runc) is not bool(options), said


def test_command_not_found(podman: Podman) -> None:
    done = podman.run(*RUN, "--rm", "busybox", "no-such-program")
    assert done.returncode == 127
    assert "not found in $PATH" in done.stderr


@pytest.mark.nightly
@pytest.mark.covers("podman run")
def test_stdin_from_a_pipe(podman: Podman) -> None:
    data = b"some\nlines\n" * 10000
    done = podman.run(*RUN, "--rm", "--interactive", "busybox", "cat", data=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, data.decode(), "")


@pytest.mark.covers("podman run")
def test_terminal(podman: Podman) -> None:
    terminal, slave = open_terminal()
    # podman tells conmon the size while it starts the container: the program may be first
    script = 'until [ "$(stty size)" = "43 143" ]; do sleep 0.1; done; echo go; read line;'
    script += 'echo "got $line"; exit 5'
    process = podman.popen(
        *RUN, "--rm", "--interactive", "--tty", "busybox", "sh", "-c", script,
        stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    terminal.read_until("go", 60)
    terminal.says_got(60)
    assert process.wait(60) == 5
    terminal.close()


@pytest.mark.covers(
    "podman stop", "podman rm", "podman ps, inspect, container, port, rename, events, diff"
)
def test_detached_logs_stop_and_rm(podman: Podman) -> None:
    script = "trap 'echo stopping; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    container = podman.must(*RUN, "--detach", "busybox", "sh", "-c", script).strip()
    wait_until("it is up", lambda: podman.must("logs", container) == "up\n")
    podman.must("stop", "--time", "1", container)
    assert podman.must("logs", container) == "up\nstopping\n"
    [inspected] = json.loads(podman.must("inspect", container))
    assert inspected["State"]["ExitCode"] == 0
    podman.must("rm", container)


@pytest.mark.nightly
@pytest.mark.covers("podman stop")
def test_stop_of_one_that_does_not_listen(podman: Podman) -> None:
    container = podman.must(*RUN, "--detach", "busybox", "sleep", "600").strip()
    podman.must("stop", "--time", "1", container)
    [inspected] = json.loads(podman.must("inspect", container))
    assert inspected["State"]["ExitCode"] == 137
    podman.must("rm", container)


@pytest.mark.covers("podman kill", "podman wait")
def test_kill_with_a_signal(podman: Podman) -> None:
    script = "trap 'echo got; exit 9' USR1; echo up; while :; do sleep 0.1; done"
    container = podman.must(*RUN, "--detach", "busybox", "sh", "-c", script).strip()
    wait_until("it is up", lambda: podman.must("logs", container) == "up\n")
    podman.must("kill", "--signal", "USR1", container)
    assert podman.must("wait", container) == "9\n"
    assert podman.must("logs", container) == "up\ngot\n"
    podman.must("rm", container)


PODMANS = ("can only kill running containers", "container state improper")
RACE = "trap 'exit 5' TERM; echo up; sleep 1"


@pytest.mark.parametrize(
    "command",
    [nightly(("stop", "--time", "5")), ("rm", "--force", "--time", "5"), nightly(("kill",))],
    ids=lambda c: c[0],
)
def test_who_races_with_the_end_is_told_no_error(podman: Podman, command: tuple[str, ...]) -> None:
    """`kill` of one that is stopped is an error, as with runc, and the engines know its words."""
    for pause in (0.7, 0.8, 0.9, 1, 1.1, 1.3)[:: often(2, 1)]:
        container = podman.must(*RUN, "--detach", "busybox", "sh", "-c", RACE).strip()
        while podman.must("logs", container) != "up\n":
            pass
        time.sleep(pause)
        done = podman.run(*command, container)
        if command == ("kill",) and done.returncode:  # podman saw it stopped itself
            assert any(words in done.stderr for words in PODMANS), done.stderr
            assert "scrun:" not in done.stderr, done.stderr
        else:
            assert (done.returncode, done.stderr) == (0, ""), (pause, done.stderr)
        podman.run("rm", "--force", container)


@pytest.mark.nightly
@pytest.mark.covers("podman rm")
def test_rm_of_a_running_one(podman: Podman) -> None:
    container = podman.must(*RUN, "--detach", "busybox", "sleep", "600").strip()
    podman.must("rm", "--force", "--time", "0", container)


@pytest.mark.nightly
def test_ten_at_once(podman: Podman) -> None:
    def run(number: int) -> int:
        return podman.run(*RUN, "--rm", "busybox", "sh", "-c", f"exit {number}").returncode

    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(run, range(10))) == list(range(10))


@pytest.mark.covers("limitation logs have no reason why a job was taken away")
def test_cancelled_from_outside(podman: Podman) -> None:
    process = podman.popen(
        *RUN, "--rm", "busybox", "sh", "-c", "echo up; exec sleep 600",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    user = podman.site.user
    with process:
        try:
            [job] = wait_until("a job", lambda: [j for j in cluster.jobs(user) if "RUNNING" in j])
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            cluster.slurm("scancel", job.split()[0])
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 122
    assert out == b""
    assert b"cancel" in err


@pytest.mark.covers("scrun(1) EXAMPLE", "limitation needs a hand-written scrun.lua")
@pytest.mark.parametrize("form", ["require", nightly("slurm")])
def test_the_manuals_script(make_site: MakeSite, form: str) -> None:
    """scrun(1), "Example scrun.lua", under rootless podman: changes come back, scratch goes."""
    site = make_site("slurm-user")
    path = site.base / "scrun.lua"
    path.write_text(manual(form))
    site.user.give(path)
    source = site.base / "source"
    source.write_text("bound\n")
    site.user.give(source)
    scratch = Path(f"/run/user/{site.user.uid}/slurm/scrun")
    with Podman(site, f'[lua]\nscript = "{path}"\n') as podman:
        volume = ("--volume", f"{source}:/bound")
        script = "cat /bound; echo changed > /result; echo $SLURM_JOB_ID"
        done = podman.run(*RUN, "--name", "one", *volume, "busybox", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        bound, job = done.stdout.split()
        assert bound == "bound"
        assert job.isdecimal()
        podman.must("cp", "one:/result", str(site.base / "b" / "result"))
        assert (site.base / "b" / "result").read_text() == "changed\n"
        assert not scratch.exists() or list(scratch.iterdir()) == []
        podman.must("rm", "one")


def test_annotations_of_an_image_are_not_the_users(podman: Podman) -> None:
    """They are in config.json beside those of the command line (docs/decisions/annotations.md)."""
    path = podman.site.base / "annotated"
    path.mkdir()
    (path / "Containerfile").write_text("FROM busybox\n")
    podman.site.user.give(path)
    podman.must("build", "--annotation", "slurm.account=evil", "--tag", "evil", str(path))
    refused = podman.run(*RUN, "--rm", "evil", "true")
    if podman.release >= (5, 0):  # it does not pass on an image's annotations
        assert refused.returncode == 0
    else:
        assert refused.returncode == 126
        assert "SCRUN_ACCOUNT: an image could have set it" in refused.stderr
    taken_back = ("--annotation", "slurm.account=")
    assert podman.must(*RUN, "--rm", *taken_back, "evil", "echo", "hello") == "hello\n"
    typed = podman.run(*RUN, "--rm", "--annotation", "slurm.partitoin=x", "busybox", "true")
    assert typed.returncode == 126
    assert "is it slurm.partition?" in typed.stderr
