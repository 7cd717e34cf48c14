"""scrun exec and shell: one more program in a running container, on each engine."""

import json
import os
import shlex
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness.beside import RUNTIMES, Beside
from tests.harness.bundle import make_config, write_bundle
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.processes import processes
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.terminal import ConsoleSocket, Terminal, open_terminal
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("promise commands of crun and runc")

# One of each engine and of each user; what depends on both has all four.
TWO = pytest.mark.parametrize("site", ["local-root", "slurm-user"], indirect=True)


@pytest.fixture
def running(site: Site) -> Life:
    """A container that waits for its end, and ends at once when it is told to."""
    life = site.shell("trap 'exit 0' TERM; while :; do sleep 0.05; done").created()
    life.start()
    wait_until("it runs", lambda: site.run("exec", life.id, "true").returncode == 0)
    return life


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun exec: joins the container, its surroundings and status")
def test_status_and_output(site: Site, running: Life) -> None:
    done = site.run("exec", running.id, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert site.run("exec", running.id, "sh", "-c", "kill -9 $$").returncode == 137


@pytest.mark.everywhere
@pytest.mark.every_launch
@pytest.mark.covers("scrun exec: joins the container, its surroundings and status")
def test_it_joins_the_container(site: Site, running: Life) -> None:
    site.must("exec", running.id, "sh", "-c", "echo changed >/dev/of-exec")
    assert site.must("exec", running.id, "cat", "/dev/of-exec") == "changed\n"
    launch = running.state()["annotations"].get("org.scrun.launch", "")
    assert launch in (("shim", "container") if site.engine == "slurm" else ("",))
    sh = slurm_version().called("sh") if launch == "container" else "sh"
    assert f"1 {sh} -c trap" in site.must("exec", running.id, "ps", "-o", "pid,args")


@pytest.mark.covers("scrun exec: joins the container, its surroundings and status")
@TWO
def test_surroundings(site: Site, running: Life) -> None:
    options = ("--env", "A=b c", "--env", "PATH=/bin:/usr/bin", "--cwd", "/tmp")
    said = site.must("exec", *options, running.id, "sh", "-c", "echo $A; pwd; echo $SITE")
    assert said == f"b c\n/tmp\n{site.base}\n"  # the rest is as the first process has it


@pytest.mark.covers("scrun exec: --process")
@TWO
def test_a_process_file(site: Site, running: Life, tmp_path: Path) -> None:
    path = site.base / "b" / "process.json"
    env = ["PATH=/bin:/usr/bin", "QUOTES='\"$(id)`", *(f"{n}=" + "x" * 100_000 for n in "AB")]
    args = ["sh", "-c", 'echo "$QUOTES"; echo ${#A} ${#B}; pwd; exit 3']
    path.write_text(json.dumps({"args": args, "env": env, "cwd": "/tmp", "user": {"uid": 0}}))
    site.user.give(path)
    done = site.run("exec", "--process", str(path), running.id)
    assert (done.returncode, done.stdout) == (3, "'\"$(id)`\n100000 100000\n/tmp\n")


@TWO
@pytest.mark.parametrize(
    "form", ["-p <(cat {})", nightly("-p /dev/stdin <{}"), nightly("--process=/dev/stdin <{}")]
)
def test_a_process_from_a_pipe_is_read_by_the_caller(site: Site, running: Life, form: str) -> None:
    path = site.base / "b" / "process.json"
    args = ["sh", "-c", "echo $A; exit 3"]
    path.write_text(
        json.dumps({"args": args, "env": ["PATH=/bin", "A=" + "x" * 70000], "cwd": "/"})
    )
    site.user.give(path)
    script = f"{shlex.join(site.command)} exec {form.format(path)} {running.id}"
    if "<{}" in form:
        option, _, redirected = form.partition(" <")
        script = (
            f"{shlex.join(site.command)} exec {option} {running.id} <{redirected.format(path)}"
        )
    done = run_program(
        [*site.user.prefix, "bash", "-c", script], env=site.environment, cwd=site.base
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "x" * 70000 + "\n", "")


@pytest.mark.covers("scrun exec: --process")
@TWO
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        nightly("[]", "is not the description"),
        nightly("{}", "args: is missing"),
    ],
)
def test_a_process_file_that_is_none(site: Site, running: Life, content: str, words: str) -> None:
    path = site.base / "b" / "process.json"
    path.write_text(content)
    site.user.give(path)
    assert words in site.fails("exec", "--process", str(path), running.id)


@pytest.mark.covers("scrun exec: joins the container, its surroundings and status")
@TWO
@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("no-such-program", 127, "not found in $PATH"),
        ("/etc", 126, "permission denied"),
    ],
)
def test_what_cannot_be_run(site: Site, running: Life, name: str, status: int, words: str) -> None:
    done = site.run("exec", running.id, name)
    assert done.returncode == status
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.covers("scrun exec: joins the container, its surroundings and status")
@TWO
@pytest.mark.parametrize(
    ("cwd", "status", "words"),
    [
        nightly("/no-such-directory", 127, "no such file or directory"),
        ("/dev/no-such-directory", 127, "no such file or directory"),  # only the runtime sees it
        nightly("/bin/busybox", 126, "not a directory"),
    ],
)
def test_where_it_cannot_be_run(
    site: Site, running: Life, cwd: str, status: int, words: str
) -> None:
    done = site.run("exec", "--cwd", cwd, running.id, "true")
    assert (done.returncode, done.stdout) == (status, "")
    assert cwd in done.stderr
    assert words in done.stderr.lower()
    assert done.stderr.count("\n") == 1


@pytest.mark.covers("scrun exec: joins the container, its surroundings and status")
@pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)
def test_a_user_that_is_not_there(site: Site, running: Life) -> None:
    assert site.must("exec", "--user", "33", running.id, "id", "-u") == "33\n"
    assert "uid 70000 does not exist in the container" in site.fails(
        "exec", "--user", "70000", running.id, "id"
    )


@pytest.mark.covers("scrun exec: joins the container, its surroundings and status", "podman exec")
@TWO
def test_several_at_once(site: Site, running: Life) -> None:
    def run(number: int) -> tuple[int, str]:
        script = f"echo {number}; sleep 0.2; exit {number}"
        done = site.run("exec", running.id, "sh", "-c", script)
        return done.returncode, done.stdout

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(run, range(6))) == [(n, f"{n}\n") for n in range(6)]


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun exec: standard input, signals, ends")
def test_stdin_and_signals(site: Site, running: Life) -> None:
    script = "trap 'echo got; exit 9' USR1; echo up; while :; do sleep 0.05; done"
    with site.popen("exec", running.id, "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGUSR1)
        assert process.wait(20) == 9
    data = b"some\nlines\n" * 5000
    with site.popen("exec", running.id, "cat") as process:
        out, _ = process.communicate(data, timeout=20)
    assert out == data


@pytest.mark.both_engines
@pytest.mark.covers("scrun exec: standard input, signals, ends")
@TWO
def test_one_that_is_killed_leaves_nothing(site: Site, running: Life) -> None:
    with site.popen("exec", running.id, "sh", "-c", "echo up; exec sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.kill()
    wait_while(
        "its program", lambda: "sleep 600" in site.must("exec", running.id, "ps", "-o", "args")
    )


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun exec: standard input, signals, ends")
@TWO
def test_it_ends_with_the_container(site: Site, running: Life) -> None:
    with site.popen("exec", running.id, "sh", "-c", "echo up; exec sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        site.must("kill", running.id, "TERM")
        assert process.wait(20) == 137
    assert running.wait() == 0


@pytest.mark.both_engines
@pytest.mark.covers("scrun exec: --detach, --pid-file")
def test_detached(site: Site, running: Life) -> None:
    pid_file = site.base / "b" / "pid"
    script = "echo done >/dev/detached; exec sleep 600"
    words = ("exec", "--detach", "--pid-file", str(pid_file), running.id, "sh", "-c", script)
    null = subprocess.DEVNULL  # the program keeps what it gets
    site.run(*words, stdout=null, stderr=null, check=True)
    anchor = int(pid_file.read_text())
    wait_until("it runs", lambda: site.run("exec", running.id, "cat", "/dev/detached").stdout)
    os.kill(anchor, signal.SIGKILL)
    wait_while(
        "its program", lambda: "sleep 600" in site.must("exec", running.id, "ps", "-o", "args")
    )


@pytest.fixture
def terminal() -> Iterator[tuple[Terminal, int]]:
    terminal, slave = open_terminal()
    yield terminal, slave
    terminal.close()


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun exec: --tty")
def test_with_a_terminal(site: Site, running: Life, terminal: tuple[Terminal, int]) -> None:
    here, slave = terminal
    # crun sets the size when the program may already run
    sized = 'until [ "$(stty size)" = "43 143" ]; do :; done; stty size'
    script = f'tty; {sized}; read line; echo "got $line"; stty size; exit 5'
    process = site.popen("exec", "--tty", running.id, "sh", "-c", script, stdio=slave)
    os.close(slave)
    here.read_until("/dev/pts/", 20)
    here.read_until("43 143", 20)
    here.says_got(20)
    assert process.wait(20) == 5


@pytest.mark.parametrize("command", [nightly(("exec", "--tty")), ("shell",)])
def test_the_caller_s_terminal_is_as_before(
    site: Site, running: Life, terminal: tuple[Terminal, int], command: tuple[str, ...]
) -> None:
    _, slave = terminal
    before = termios.tcgetattr(slave)
    for _ in range(3):
        process = site.popen(*command, running.id, "sh", "-c", "exit 4", stdio=slave)
        assert process.wait(30) == 4
        assert termios.tcgetattr(slave) == before
    os.close(slave)


@pytest.mark.covers("scrun shell")
@TWO
def test_shell(site: Site, running: Life, terminal: tuple[Terminal, int]) -> None:
    here, slave = terminal
    beginning = running.id[:-1]
    environment = {**site.environment, "TERM": "vt220"}
    process = site.popen("shell", beginning, stdio=slave, env=environment)
    os.close(slave)
    here.write("echo it is $TERM; exit 6\n")
    here.read_until("it is vt220", 20)
    assert process.wait(20) == 6


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun exec: --process", "scrun(1) --console-socket")
@TWO
def test_the_first_size_of_a_terminal(site: Site) -> None:
    """docker gives it in `consoleSize`, for the container's terminal and that of an `exec`."""
    # crun sets it just after the program has started
    waits = "until [ \"$(stty size)\" = '{}' ]; do sleep 0.05; done; echo it has it"
    config = site.config("sh", "-c", f"{waits.format('33 44')}; read x", terminal=True)
    config["process"]["consoleSize"] = {"height": 33, "width": 44}
    life = site.life(config=config, terminal=True).created()
    life.start()
    life.terminal().read_until("it has it")
    process = site.base / "b" / "process.json"
    sized = {
        "args": ["sh", "-c", waits.format("55 66")],
        "env": ["PATH=/bin"],
        "cwd": "/",
        "terminal": True,
    }
    process.write_text(json.dumps({**sized, "consoleSize": {"height": 55, "width": 66}}))
    site.user.give(process)
    console = ConsoleSocket(site.base / "b" / "console")
    words = ["--detach", "--console-socket", str(console.path), "--process", str(process)]
    with site.popen("exec", *words, life.id) as calling:
        terminal = console.receive()
        assert calling.wait(30) == 0
    terminal.read_until("it has it")
    console.close()
    life.kill("KILL")
    assert life.wait() == 137


@pytest.mark.covers("scrun exec: --tty", "scrun shell")
@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_without_a_terminal(site: Site, running: Life) -> None:
    assert "--console-socket" in site.fails("exec", "--tty", "--detach", running.id, "true")
    assert "needs a command" in site.fails("exec", running.id)


@pytest.mark.covers("scrun exec: standard input, signals, ends")
@pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)
def test_where_nothing_runs(site: Site) -> None:
    life = site.life("true").created()
    assert "is created, not running" in site.fails("exec", life.id, "true")
    life.start()
    life.wait()
    assert "is stopped, not running" in site.fails("exec", life.id, "true")
    life.delete()
    assert "does not exist" in site.fails("exec", life.id, "true")


@pytest.mark.parametrize(
    "words",
    [["exec", "ID", "true"], ["ps", "ID"], ["events", "--stats", "ID"], ["pause", "ID"],
     ["update", "--memory", "100000000", "ID"]],
    ids=lambda words: str(words[0]),
)  # fmt: skip
@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_right_after_its_end(site: Site, words: list[str]) -> None:
    """The engine, whose child the container is, may know of its end before the supervisor."""
    life = site.shell("sleep 600").created().start()
    supervisor = site.stopped_supervisor()
    try:
        os.kill(life.anchor, signal.SIGKILL)
        assert life.wait() == 137
        asking = site.popen(*[life.id if word == "ID" else word for word in words])
        time.sleep(0.5)  # by then it has asked
    finally:
        os.kill(supervisor, signal.SIGCONT)
    _, said = asking.communicate(timeout=30)
    assert f"{words[0]} is not possible: it is stopped" in said.decode()
    assert asking.returncode == 1
    life.delete()


@pytest.mark.covers("scrun exec: the runtime's command")
@pytest.mark.oci_conf
def test_a_pattern_of_the_site(make_site: MakeSite) -> None:
    """[runtime] exec of scrun.toml, where the runtime is called by other words."""
    pattern = "sh -c 'echo instead of %f; exit 9'"
    site = make_site("slurm-user", settings=f'[runtime]\nexec = "{pattern}"\n')
    life = site.life("sleep", "600").created()
    life.start()
    done = site.run("exec", life.id, "true")
    assert (done.returncode, done.stdout) == (9, "instead of /proc/self/fd/9\n")
    life.delete()


@pytest.mark.covers("security variables of the container, of an exec, of the caller")
@pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)
def test_its_variables_are_on_no_command_line(site: Site, running: Life) -> None:
    """Everybody can read those (proc(5)); a variable may be a password."""
    path = site.base / "b" / "process.json"
    environment = ["PATH=/bin", "PASSWORD=in-a-variable"]
    args = ["sh", "-c", 'echo "$PASSWORD"; exec sleep 0.3']
    path.write_text(json.dumps({"args": args, "env": environment, "cwd": "/"}))
    site.user.give(path)
    seen: list[str] = []
    with site.popen("exec", "--process", str(path), running.id) as running_exec:
        while running_exec.poll() is None:  # from its first process to its last
            seen += [str(process.argv) for process in processes()]
        assert running_exec.stdout is not None
        assert running_exec.stdout.read() == b"in-a-variable\n"
    assert any("exec" in argv and str(path) in argv for argv in seen)
    assert [argv for argv in seen if "in-a-variable" in argv] == []


@pytest.mark.parametrize("site", ["local-root"], indirect=True)
def test_a_capability_is_as_with_the_runtimes(site: Site, running: Life, tmp_path: Path) -> None:
    """In no set by which programs of other users would have it, too."""
    words = ("--cap", "CAP_SYS_TIME", "--cap", "chown")

    def seen(said: str) -> dict[str, int]:
        lines = (line.split() for line in said.splitlines())
        return {name: int(value, 16) & 1 << 25 | int(value, 16) & 1 for name, value in lines}

    asked = ("grep", "^Cap", "/proc/self/status")
    ours = seen(site.must("exec", *words, running.id, *asked))
    assert ours["CapInh:"] == ours["CapAmb:"] == 0
    assert ours["CapEff:"] == ours["CapBnd:"] == 1 << 25 | 1
    config = make_config(["sleep", "60"], str(site.rootfs))
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
    bundle = write_bundle(tmp_path / "bundle", config)
    for runtime in RUNTIMES:
        beside = Beside(runtime, tmp_path / runtime)
        with beside.running(bundle) as container:
            done = beside.run(
                "exec", "--cap", "CAP_SYS_TIME", "--cap", "CAP_CHOWN", container, *asked
            )
            assert seen(done.stdout) == ours, (runtime, done)
