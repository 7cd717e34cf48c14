"""dockerd, with scrun as its runtime, on Slurm."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import cluster
from tests.harness.docker import Docker
from tests.harness.networks import tun as tun
from tests.harness.nightly import nightly, often
from tests.harness.terminal import Terminal, open_terminal
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise engines and services")

LOOP = "trap 'echo stopping; exit 5' TERM; echo up; while :; do sleep 0.1; done"
SHARED = ("--network", "none", "--env", "COLOUR=blue")
STATUS = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"


@pytest.fixture(
    scope="module", params=["root", pytest.param("rootless", marks=pytest.mark.nightly)]
)
def _docker(request: pytest.FixtureRequest) -> Iterator[Docker]:
    with Docker(rootless=request.param == "rootless") as docker:
        yield docker


@pytest.fixture
def docker(_docker: Docker) -> Iterator[Docker]:
    """A dockerd whose default runtime is scrun; no container, job or record is left."""
    yield _docker
    _docker.clear()


def start(docker: Docker, script: str, *options: str) -> str:
    """Start a container in the background, wait until it says "up", and return its id."""
    container = docker.must("run", "--detach", *options, "busybox", "sh", "-c", script).strip()
    wait_until("it is up", lambda: docker.must("logs", container).startswith("up\n"))
    return container


@pytest.mark.covers("docker run")
@pytest.mark.covers("limitation the exit status is lost")
@pytest.mark.covers("guide Types: Docker as root, rootless Docker")
def test_run(docker: Docker) -> None:
    script = "echo out; echo err >&2; exit 7"
    done = docker.run("run", "--rm", "--network", "none", "busybox", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


@pytest.mark.covers("docker run")
@pytest.mark.covers("limitation --security-opt (label, seccomp")
@pytest.mark.covers("limitation --network none is needed at every call")
@pytest.mark.covers("limitation --ulimit, --cgroupns and the like are needed at every call")
def test_no_option_is_needed(docker: Docker) -> None:
    """Neither --security-opt nor --network, which Slurm's own scrun needs at every call."""
    variables = docker.must("run", "--rm", "busybox", "env")
    assert "SLURM_JOB_ID=" in variables
    assert "SCRUN_" not in variables


@pytest.mark.nightly
@pytest.mark.covers("docker run")
@pytest.mark.covers("docker network")
@pytest.mark.covers("limitation --network none is needed at every call")
@pytest.mark.covers("limitation no custom networks: all containers work in the host's network")
def test_host_network(docker: Docker) -> None:
    container = docker.must("run", "--detach", "--network", "host", "busybox", "sleep", "1000")
    names = ("exec", container.strip(), "ls", "/sys/class/net")

    def are_those_of_the_node() -> bool:  # interfaces of other tests come and go
        return sorted(docker.must(*names).split()) == sorted(os.listdir("/sys/class/net"))

    wait_until("the node's interfaces", are_those_of_the_node)
    docker.must("rm", "--force", container.strip())


@pytest.mark.nightly
@pytest.mark.covers("docker run")
def test_stdin_from_a_pipe(docker: Docker) -> None:
    data = b"some\nlines\n" * 10000
    done = docker.run("run", "--rm", "--interactive", "busybox", "cat", data=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, data.decode(), "")


@contextmanager
def typed(docker: Docker, *arguments: str) -> Iterator[tuple[Terminal, "subprocess.Popen[bytes]"]]:
    """Call docker in a terminal of 43 lines."""
    terminal, slave = open_terminal()
    with docker.popen(*arguments, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        try:
            yield terminal, process
        finally:
            process.kill()
            terminal.close()


@pytest.mark.covers("docker run")
def test_terminal(docker: Docker) -> None:
    script = 'echo up; until [ "$(stty size)" = "44 144" ]; do sleep 0.1; done;'
    script += ' echo go; read line; echo "got $line"; exit 5'
    run = ("run", "--rm", "-it", "busybox", "sh", "-c", script)
    with typed(docker, *run) as (terminal, process):
        terminal.read_until("up", 30)
        terminal.resize(44, 144)
        process.send_signal(signal.SIGWINCH)
        terminal.read_until("go", 30)
        terminal.says_got(30)
        assert process.wait(30) == 5


@pytest.mark.covers("docker run")
def test_command_not_found(docker: Docker) -> None:
    done = docker.run("run", "--rm", "busybox", "no-such-program")
    assert "executable file `no-such-program` not found in $PATH" in done.stderr
    assert done.returncode == 127


@pytest.mark.nightly
@pytest.mark.covers("docker run")
def test_command_not_executable(docker: Docker) -> None:
    done = docker.run("run", "--rm", "busybox", "/etc/passwd")
    assert "permission denied" in done.stderr
    assert done.returncode == 126


@pytest.mark.covers("docker logs", "docker stop, restart, inspect")
def test_stop_logs_inspect_start_restart(docker: Docker) -> None:
    container = start(docker, LOOP)
    assert docker.must("inspect", "--format", STATUS, container) == "running 0 false\n"
    docker.must("stop", "--time", "10", container)
    assert docker.must("logs", container) == "up\nstopping\n"
    assert docker.must("inspect", "--format", STATUS, container) == "exited 5 false\n"
    docker.must("start", container)
    wait_until("it is up again", lambda: docker.must("logs", container).count("up") == 2)
    docker.must("restart", "--time", "10", container)
    wait_until("it is restarted", lambda: docker.must("logs", container).count("up") == 3)
    docker.must("rm", "--force", container)


@pytest.mark.nightly
@pytest.mark.covers("docker stop, restart, inspect")
def test_stop_of_one_that_does_not_listen(docker: Docker) -> None:
    container = start(docker, "echo up; exec sleep 600")
    docker.must("stop", "--time", "1", container)
    assert docker.must("inspect", "--format", STATUS, container) == "exited 137 false\n"
    docker.must("rm", container)


@pytest.mark.covers("docker kill, wait")
def test_kill_with_a_signal_and_wait(docker: Docker) -> None:
    script = "trap 'echo got; exit 9' USR1; echo up; while :; do sleep 0.1; done"
    container = start(docker, script)
    docker.must("kill", "--signal", "USR1", container)
    assert docker.must("wait", container) == "9\n"
    assert docker.must("logs", container) == "up\ngot\n"
    docker.must("rm", container)


RACE = "trap 'exit 5' TERM; echo up; sleep 1"


@pytest.mark.parametrize(
    "command",
    [("stop", "--time", "5"), nightly(("rm", "--force")), nightly(("kill",))],
    ids=lambda c: c[0],
)
def test_who_races_with_the_end_is_told_no_error(docker: Docker, command: tuple[str, ...]) -> None:
    """`kill` of one that is stopped is an error, as with runc, and the engines know its words."""
    for pause in (0.7, 0.8, 0.9, 1, 1.1, 1.3)[:: often(2, 1)]:
        container = start(docker, RACE)
        time.sleep(pause)
        done = docker.run(*command, container)
        if command == ("kill",) and done.returncode:  # docker saw it stopped itself
            assert "not running" in done.stderr.lower(), done.stderr
            assert "scrun:" not in done.stderr, done.stderr
        else:
            assert (done.returncode, done.stderr) == (0, ""), (pause, done.stderr)
        docker.run("rm", "--force", container)


@pytest.mark.covers("docker create, start", "docker rm")
def test_create_start_attached_and_rm(docker: Docker) -> None:
    container = docker.must("create", "busybox", "sh", "-c", "echo said; exit 3").strip()
    done = docker.run("start", "--attach", container)
    assert (done.returncode, done.stdout) == (3, "said\n")
    docker.must("rm", container)


@pytest.mark.covers("docker attach", "docker logs")
def test_attach(docker: Docker) -> None:
    script = "echo up; read line; echo got $line; read line; exit 4"
    container = start(docker, script, "--interactive")
    pipe = subprocess.PIPE
    with docker.popen("attach", container, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line, answer in ((b"this\n", b"got this\n"), (b"that\n", b"")):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == answer
        assert process.wait(30) == 4
    assert docker.must("logs", "--follow", container) == "up\ngot this\n"
    docker.must("rm", container)


@pytest.mark.nightly
@pytest.mark.covers("docker run")
def test_init(docker: Docker) -> None:
    script = "cat /proc/1/comm"
    assert "init" in docker.must("run", "--rm", "--init", "busybox", "sh", "-c", script)


@pytest.mark.nightly
@pytest.mark.covers("docker run")
def test_volumes_and_a_read_only_root(docker: Docker) -> None:
    place = docker.base / "volume"
    place.mkdir()
    (place / "in").write_text("from here\n")
    docker.site.user.give(place)
    script = "cat /v/in; echo from there > /v/out; echo x > /t/x && ! echo x 2>/dev/null > /x"
    options = ("--volume", f"{place}:/v", "--tmpfs", "/t", "--read-only", "--user", "0:0")
    assert docker.must("run", "--rm", *options, "busybox", "sh", "-c", script) == "from here\n"
    assert (place / "out").read_text() == "from there\n"


@pytest.mark.covers("docker pause, unpause", "limitation pause is not supported")
def test_pause_and_unpause(docker: Docker) -> None:
    place = docker.base / "pulse"
    place.mkdir()
    docker.site.user.give(place)
    script = "echo up; while :; do echo x >> /v/pulse; sleep 0.01; done"
    container = start(docker, script, "--volume", f"{place}:/v")
    docker.must("pause", container)
    assert docker.must("inspect", "--format", STATUS, container) == "paused 0 false\n"
    before = (place / "pulse").stat().st_size
    time.sleep(0.2)
    assert (place / "pulse").stat().st_size == before
    docker.must("unpause", container)
    wait_until("it goes on", lambda: (place / "pulse").stat().st_size > before)
    docker.must("rm", "--force", container)


@pytest.mark.nightly
@pytest.mark.covers("docker rm")
def test_delete_of_what_is_gone(docker: Docker) -> None:
    """dockerd calls `delete --force` a second time, from another process of its shim."""
    log = docker.base / "log.json"
    options = ("--root", str(docker.records), "--log", str(log), "--log-format", "json")
    done = docker.site.run(*options, "delete", "--force", "f" * 64)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.covers("docker build, builder", "limitation build is not supported")
def test_build(docker: Docker) -> None:
    context = docker.base / "context"
    context.mkdir()
    (context / "file").write_text("copied\n")
    steps = ["FROM busybox", "COPY file /file"]
    steps += ["RUN cat /file > /result && test $SLURM_JOB_ID"]
    steps += ["RUN mkdir /mine && chown 5:6 /mine", 'CMD ["cat", "/result"]']
    (context / "Dockerfile").write_text("\n".join(steps))
    docker.must("build", "--tag", "built", str(context))
    try:
        assert docker.must("run", "--rm", "built") == "copied\n"
        owner = docker.must("run", "--rm", "built", "stat", "-c", "%u:%g", "/mine")
        assert owner == "5:6\n"
    finally:
        docker.must("rmi", "built")


@pytest.mark.nightly
@pytest.mark.covers("docker build, builder")
def test_a_build_step_that_fails(docker: Docker) -> None:
    context = docker.base / "failing"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM busybox\nRUN exit 9\n")
    done = docker.run("build", "--rm", "--force-rm", str(context))
    assert done.returncode == 9
    assert "returned a non-zero code: 9" in done.stderr


@pytest.mark.covers("docker cp, diff, export, commit")
@pytest.mark.covers("docker info, version")
@pytest.mark.covers("docker commands that need no runtime")
def test_what_does_not_involve_the_runtime(docker: Docker) -> None:
    docker.must("tag", "busybox", "other:1")
    assert "other" in docker.must("images")
    docker.must("history", "busybox")
    archive = str(docker.base / "saved.tar")
    docker.must("save", "--output", archive, "other:1")
    docker.must("rmi", "other:1")
    docker.must("load", "--input", archive)
    docker.must("rmi", "other:1")
    docker.must("volume", "create", "some")
    docker.must("volume", "rm", "some")
    assert "host" in docker.must("network", "ls", "--format", "{{.Name}}")
    assert docker.must("info", "--format", "{{.DefaultRuntime}}") == "scrun\n"
    container = docker.must("create", "busybox").strip()
    docker.must("commit", container, "other:2")
    docker.must("rmi", "other:2")
    docker.must("container", "prune", "--force")
    docker.must("system", "df")
    docker.must("context", "ls")
    docker.must("plugin", "ls")
    docker.must("image", "ls")
    there = "127.0.0.1:1/x"  # nobody listens
    for command in ("login", "pull", "push"):
        assert docker.run(command, there).returncode != 0


@pytest.mark.covers("docker node, service, stack, swarm")
def test_no_swarm(docker: Docker) -> None:
    for command in (("node", "ls"), ("service", "ls"), ("stack", "ls"), ("secret", "ls")):
        done = docker.run(*command)
        assert done.returncode != 0
        assert "swarm manager" in done.stderr
    assert docker.must("swarm", "--help")


# One container for the tests that leave it as it was; so they come last


@pytest.fixture(scope="module")
def _running(_docker: Docker) -> Iterator[str]:
    yield start(_docker, "echo up; exec sleep 600", "--name", "shared", *SHARED)
    _docker.run("rm", "--force", "shared")


@pytest.fixture
def running(_running: str, _docker: Docker) -> tuple[Docker, str]:
    return _docker, _running


@pytest.mark.covers("docker exec", "limitation exec is not supported")
def test_exec(running: tuple[Docker, str]) -> None:
    docker, container = running
    script = "echo $COLOUR $SHAPE; pwd; id -u; echo err >&2; exit 6"
    options = ("--env", "SHAPE=round", "--workdir", "/tmp", "--user", "7")
    done = docker.run("exec", *options, container, "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (6, "blue round\n/tmp\n7\n", "err\n")


@pytest.mark.nightly
@pytest.mark.covers("docker exec")
def test_exec_with_stdin(running: tuple[Docker, str]) -> None:
    docker, container = running
    assert docker.must("exec", "--interactive", container, "cat", data=b"data\n") == "data\n"


@pytest.mark.covers("docker exec")
def test_exec_in_a_terminal(running: tuple[Docker, str]) -> None:
    docker, container = running
    script = "tty; read line; echo got $line; exit 5"
    with typed(docker, "exec", "-it", container, "sh", "-c", script) as (terminal, process):
        terminal.read_until("/dev/pts/", 30)
        terminal.says_got(30)
        assert process.wait(30) == 5


@pytest.mark.nightly
@pytest.mark.covers("docker exec")
def test_exec_in_the_background(running: tuple[Docker, str]) -> None:
    docker, container = running
    docker.must("exec", "--detach", container, "sh", "-c", "echo done > /tmp/background")
    read = ("exec", container, "cat", "/tmp/background")
    wait_until("it is done", lambda: docker.run(*read).stdout == "done\n")


@pytest.mark.nightly
@pytest.mark.covers("docker exec")
def test_exec_of_nothing(running: tuple[Docker, str]) -> None:
    docker, container = running
    done = docker.run("exec", container, "no-such-program")
    assert done.returncode in (126, 127)
    assert "no-such-program" in done.stdout + done.stderr


@pytest.mark.covers("docker top")
def test_top(running: tuple[Docker, str]) -> None:
    docker, container = running
    assert "sleep 600" in docker.must("top", container)


@pytest.mark.nightly
@pytest.mark.covers("docker update")
def test_update_is_refused(running: tuple[Docker, str]) -> None:
    docker, container = running
    done = docker.run("update", "--cpu-shares", "512", container)
    if done.returncode == 0:  # a rootless one without cgroups does not ask, since 28
        assert "Shares discarded" in done.stdout
    else:
        assert "Slurm can only lower the time limit of the running job" in done.stderr
    assert docker.must("inspect", "--format", "{{.State.Status}}", container) == "running\n"


@pytest.mark.nightly
@pytest.mark.covers("docker checkpoint")
def test_checkpoint_is_refused(running: tuple[Docker, str]) -> None:
    docker, container = running
    done = docker.run("checkpoint", "create", container, "one")
    assert done.returncode != 0
    assert "experimental" in done.stderr
    assert docker.must("inspect", "--format", "{{.State.Status}}", container) == "running\n"


@pytest.mark.covers("docker stats")
def test_stats_are_of_the_submit_host(running: tuple[Docker, str]) -> None:
    docker, container = running
    line = docker.must("stats", "--no-stream", "--format", "{{.Name}} {{.PIDs}}", container)
    assert line.split()[0] == "shared"


@pytest.mark.covers("docker cp, diff, export, commit")
def test_cp_is_on_the_storage(running: tuple[Docker, str]) -> None:
    docker, container = running
    docker.must("cp", f"{container}:/etc/passwd", str(docker.base / "passwd"))
    assert "root" in (docker.base / "passwd").read_text()
    (docker.base / "given").write_text("given\n")
    docker.must("cp", str(docker.base / "given"), f"{container}:/given")
    assert "A /given" in docker.must("diff", container)


@pytest.mark.covers("docker cp, diff, export, commit")
@pytest.mark.covers("docker container, ps, port, rename, events")
def test_what_asks_about_containers(running: tuple[Docker, str]) -> None:
    docker, container = running
    assert docker.must("ps", "--format", "{{.Names}}") == "shared\n"
    assert docker.must("port", container) == ""
    docker.must("rename", container, "other")
    docker.must("rename", "other", "shared")
    assert "bin/busybox" in docker.must("export", container)
    assert "start" in docker.must("events", "--since", "1h", "--until", "0s")


@pytest.mark.covers("docker network")
def test_dockers_network_stays_on_this_machine(running: tuple[Docker, str]) -> None:
    """Its hook is dropped. Newer docker has none, and enters the namespace of the pid it knows."""
    docker, container = running
    tasks = Path(f"{docker.base}/e").rglob(f"{container}/config.json")
    given = [json.loads(path.read_bytes()) for path in tasks]
    assert given
    hooked = any("prestart" in config.get("hooks", {}) for config in given)
    version = docker.must("version", "--format", "{{.Server.Version}}")
    assert hooked or int(version.partition(".")[0]) >= 28
    record = docker.records / container
    staged = json.loads((record / "bundle" / "config.json").read_bytes())
    assert "hooks" not in staged
    assert ("hooks dropped" in (record / "log").read_text()) is hooked
    pid = docker.must("inspect", "--format", "{{.State.Pid}}", container).strip()
    assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


@pytest.mark.covers("limitation all containers run without privileges")
def test_its_job_is_roots(running: tuple[Docker, str]) -> None:
    docker, _ = running
    assert any("RUNNING" in job for job in cluster.jobs(docker.site.user, docker.base.name))
