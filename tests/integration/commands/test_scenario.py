"""The five operations on every engine: the phases, exit statuses, stdio, terminals, signals."""

import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import MakeSite
from tests.harness import cluster, schema
from tests.harness.beside import RUNTIMES, Beside
from tests.harness.bundle import Config, make_config, snapshot, write_bundle
from tests.harness.nightly import nightly, often
from tests.harness.site import Site, whole_life
from tests.harness.slow_staging import stage_slowly
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until, wait_while

as_root = pytest.mark.parametrize("site", ["local-root", "slurm-root"], indirect=True)
on_slurm = pytest.mark.parametrize("site", ["slurm-root", "slurm-user"], indirect=True)
one_each = pytest.mark.parametrize("site", ["local-root", "slurm-user"], indirect=True)


# 1. The phases


@pytest.mark.everywhere
@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) SYNOPSIS: create")
@pytest.mark.covers("scrun(1) SYNOPSIS: state")
@pytest.mark.covers("slurm-scrun needs a scrun.lua, JSON for Lua and an oci.conf")
@pytest.mark.covers("limitation needs an oci.conf on the nodes")
@pytest.mark.covers("guide Known limitations: no privileges, the node's network")
@pytest.mark.covers("guide Container support via plugins: SPANK")
@pytest.mark.covers("promise a whole life: each state, and valid JSON in each")
@pytest.mark.covers("promise kill and delete in each state")
def test_whole_life(site: Site) -> None:
    bundle_before: dict[str, tuple[int, int, int]] = {}

    def check(status: str) -> None:
        state = life.state()
        jsonschema.validate(state, schema.STATE)
        assert list(state)[:3] == ["ociVersion", "id", "status"]
        assert state["ociVersion"] == "1.0.2"
        assert state["id"] == life.id
        assert state["status"] == status
        assert state["bundle"] == str(life.bundle)
        assert state["annotations"]["org.example.test"] == "yes"
        assert state["annotations"]["org.scrun.engine"] == site.engine
        assert state.get("pid", 0) == (0 if status == "stopped" else life.anchor)

    life = site.life("sh", "-c", "echo begun; read line; echo $line; exit 3", stdin="pipe")
    bundle_before = snapshot(life.bundle)
    life.created()
    check("created")
    assert life.stdout is not None
    assert life.stdout.so_far == b""
    life.start().says("begun")
    check("running")
    os.write(life.stdin, b"ended\n")
    assert life.wait() == 3
    check("stopped")
    assert life.state()["annotations"]["org.scrun.exit_status"] == "3"
    assert life.output() == "begun\nended\n"
    assert life.errors() == ""
    life.delete()
    assert life.status == "gone"
    assert snapshot(life.bundle) == bundle_before
    site.settle()


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) SYNOPSIS: create")
@pytest.mark.covers("scrun(1) SYNOPSIS: start")
@pytest.mark.covers("slurm-scrun create starts the container")
@pytest.mark.covers("promise a whole life: each state, and valid JSON in each")
def test_only_start_starts(site: Site) -> None:
    life = site.shell("echo started").created()
    threading.Event().wait(0.5)
    assert life.status == "created"
    assert life.stdout is not None
    assert life.stdout.so_far == b""
    life.start()
    assert life.output() == "started\n"
    assert life.wait() == 0
    again = life.run("start")
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1


@pytest.mark.both_engines
@pytest.mark.covers("scrun(1) CREATE OPTIONS: --pid-file")
def test_pid_file_is_locked_for_the_life_of_the_anchor(site: Site) -> None:
    life = site.life("sleep", "600").created()
    assert life.pid_file.read_text() == str(life.anchor)
    assert stat.S_IMODE(life.pid_file.stat().st_mode) == 0o644
    with life.pid_file.open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        life.kill("KILL")
        life.wait()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.covers("scrun(1) SYNOPSIS: create")
@pytest.mark.covers("slurm-scrun duplicate id: a second job, the first unreachable")
@pytest.mark.covers("promise a bad bundle is refused before a job is asked for")
def test_duplicate_id(site: Site) -> None:
    life = site.life("sleep", "600").created()
    before = life.state()
    again = site.fails("create", "--bundle", str(life.bundle), life.id)
    assert "already exists" in again
    assert life.state() == before
    if site.engine == "slurm":
        assert len(cluster.jobs(site.user)) == 1


@pytest.mark.covers("scrun(1) RETURN VALUE")
@pytest.mark.covers("slurm-scrun unknown id: state exits 0 with invalid JSON")
@pytest.mark.covers("promise a bad bundle is refused before a job is asked for")
@one_each
def test_unknown_id(site: Site) -> None:
    for command in ("state", "start", "kill", "delete"):
        assert "does not exist" in site.fails(command, "nobody")


@pytest.mark.covers("scrun(1) SYNOPSIS: delete")
@pytest.mark.covers("scrun(1) DELETE OPTIONS: --force")
@pytest.mark.covers("promise kill and delete in each state")
@pytest.mark.covers("promise a bad bundle is refused before a job is asked for")
def test_unknown_id_is_no_error_of_a_forced_delete(site: Site) -> None:
    assert site.must("delete", "--force", "nobody") == ""


@pytest.mark.covers("scrun(1) CREATE OPTIONS: --bundle")
def test_root_path_relative_to_the_bundle(site: Site) -> None:
    config = site.config("echo", "hello")
    config["root"]["path"] = "rootfs"
    life_bundle = site.bundle(config)
    shutil.copytree(site.rootfs, life_bundle / "rootfs", symlinks=True)
    site.user.give(life_bundle)
    life = site.life(bundle=life_bundle).created().start()
    assert life.output() == "hello\n"
    assert life.wait() == 0


def test_environment_is_that_of_the_configuration(site: Site) -> None:
    config = site.config("env")
    config["process"]["env"] += ["SPACE=a b", "QUOTE='\"$(id)", "PATH=/bin"]
    life = site.life(config=config).created().start()
    lines = life.output().splitlines()
    assert "SPACE=a b" in lines
    assert "QUOTE='\"$(id)" in lines
    assert "PATH=/bin" in lines
    assert not [line for line in lines if line.startswith("SCRUN_")]


@pytest.mark.everywhere
def test_user_is_the_configured_one(site: Site) -> None:
    life = site.shell("id -u; id -g").created().start()
    assert life.output() == "0\n0\n"


def test_group_and_job_are_told(site: Site) -> None:
    life = site.life("true").created()
    assert life.job_id.isdigit()


def _without(*path: str) -> Callable[[Config], object]:
    return _with(None, *path)


def _with(value: object, *path: str) -> Callable[[Config], object]:
    """An edit of a config.json: another value of a member, or with None no member."""

    def edit(config: Config) -> object:
        place: Any = config
        for name in path[:-1]:
            place = place[name]
        del place[path[-1]]
        if value is not None:
            place[path[-1]] = value
        return config

    return edit


_BAD: list[tuple[Callable[[Config], object], str]] = [
    (_without("process", "args"), "args"),
    (_with([], "process", "args"), "args"),
    (_with("true", "process", "args"), "args"),
    (_with([1], "process", "args"), "args"),
    (_without("process", "cwd"), "cwd"),
    (_with("here", "process", "cwd"), "cwd"),
    (_with("yes", "process", "terminal"), "terminal"),
    (_with({"a": 1}, "process", "env"), "env"),
    (_without("root"), "root"),
    (_with("/no/such/directory", "root", "path"), "root"),
    (_with("/etc/passwd", "root", "path"), "root"),
    (_with("none", "mounts"), "mounts"),
    (_with([{"type": "bind"}], "mounts"), "destination"),
    (_with([1], "annotations"), "annotations"),
    (_without("ociVersion"), "ociVersion"),
    (lambda _: [], "object"),
]


@pytest.mark.covers("scrun(1) RETURN VALUE")
@pytest.mark.covers("slurm-scrun args, rootfs or program missing: create exits 0")
@pytest.mark.covers("promise a bad bundle is refused before a job is asked for")
@one_each
def test_bad_configuration_is_refused(site: Site) -> None:
    for edit, named in _BAD:
        bundle = site.bundle(edit(site.config("true")))
        assert named in site.fails("create", "--bundle", str(bundle), "bad")
    site.settle()


@pytest.mark.covers("scrun(1) CREATE OPTIONS: --bundle")
@pytest.mark.covers("slurm-scrun args, rootfs or program missing: create exits 0")
@pytest.mark.covers("promise a bad bundle is refused before a job is asked for")
@one_each
def test_bad_bundle_is_refused(site: Site) -> None:
    bundle = site.bundle(site.config("true"))
    (bundle / "config.json").write_text("{")
    assert "config.json" in site.fails("create", "--bundle", str(bundle), "bad")
    (bundle / "config.json").unlink()
    assert "config.json" in site.fails("create", "--bundle", str(bundle), "bad")
    assert "/no/such" in site.fails("create", "--bundle", "/no/such/bundle", "bad")
    site.settle()


@pytest.mark.covers("promise a bad bundle is refused before a job is asked for")
@one_each
def test_bad_id_is_refused(site: Site) -> None:
    bundle = site.bundle(site.config("true"))
    for bad in ("", ".", "..", "a/b", "../x", "a b", "ä", "a" * 2000):
        for command in (["create", "--bundle", str(bundle)], ["state"], ["delete", "--force"]):
            done = site.run(*command, bad)
            assert done.returncode != 0
            assert done.stderr.count("\n") == 1
    site.settle()


@pytest.mark.covers("scrun(1) GLOBAL OPTIONS: --debug, --verbose, --log, --log-format")
@one_each
def test_errors_go_to_the_log_as_json(site: Site) -> None:
    log = site.base / "l" / "json"
    options = ("--log", str(log), "--log-format", "json")
    site.fails(*options, "create", "--bundle", "/no/such/bundle", "bad")
    [line] = log.read_text().splitlines()
    entry = json.loads(line)
    assert entry["level"] == "error"
    assert "/no/such/bundle" in entry["msg"]
    assert entry["time"]


# 2. Exit statuses


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) RETURN VALUE")
@pytest.mark.covers("slurm-scrun the anchor exits 0 whatever the container did")
@pytest.mark.covers("promise exit statuses")
@pytest.mark.parametrize("status", [nightly(0), 7, 137, nightly(255)])
def test_exit_status(site: Site, status: int) -> None:
    life = site.shell(f"exit {status}").created().start()
    assert life.wait() == status
    assert life.state()["annotations"]["org.scrun.exit_status"] == str(status)
    assert life.errors() == ""


@pytest.mark.both_engines
@pytest.mark.covers("slurm-scrun args, rootfs or program missing: create exits 0")
@pytest.mark.covers("promise exit statuses")
def test_command_not_found_is_refused(site: Site) -> None:
    said = site.life("no-such-program").refused()
    assert "executable file" in said
    assert "not found in $PATH" in said
    site.settle()


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("promise exit statuses")
def test_command_not_found_where_only_the_container_can_know(site: Site) -> None:
    config = site.config("/tmp/program")
    config["mounts"].append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"})
    life = site.life(config=config)
    if site.creates_first:
        assert "no such file or directory" in life.refused().lower()
        return
    life.created().run("start")
    assert life.wait() == 127


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("slurm-scrun the anchor exits 0 whatever the container did")
@pytest.mark.covers("slurm-scrun kill ID KILL is TERM at first")
@pytest.mark.covers("promise exit statuses")
@pytest.mark.covers("promise kill and delete in each state")
@pytest.mark.parametrize(
    ("name", "script", "status"),
    [
        ("KILL", "echo up; exec sleep 600", 137),
        ("TERM", "trap 'exit 143' TERM; echo up; sleep 600 & wait", 143),
    ],
)
def test_killed(site: Site, name: str, script: str, status: int) -> None:
    life = site.shell(script).created().start().says("up")
    life.kill(name)
    assert life.wait() == status


@pytest.mark.covers("promise exit statuses", "promise kill and delete in each state")
@pytest.mark.parametrize("number", [9, 15])
@as_root
def test_killed_by_its_own_signal(site: Site, number: int) -> None:
    config = site.config("sh", "-c", f"kill -{number} $$; sleep 600")
    namespaces = config["linux"]["namespaces"]
    namespaces.remove({"type": "pid"})  # pid 1 of a namespace of its own cannot be killed so
    assert site.life(config=config).created().start().wait() == 128 + number


# 3. stdio


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) DESCRIPTION: standard input and output")
@pytest.mark.covers("promise standard input, output and error")
def test_stdin_has_an_end(site: Site) -> None:
    life = site.shell("cat; echo end", stdin="pipe").created().start()
    os.write(life.stdin, b"some\nlines\n")
    life.close_stdin()
    assert life.output() == "some\nlines\nend\n"
    assert life.wait() == 0


@pytest.mark.covers("promise standard input, output and error")
def test_stdin_may_end_before_start(site: Site) -> None:
    life = site.life("cat", stdin="pipe")
    os.write(life.stdin, b"early\n")
    life.close_stdin()
    life.created().start()
    assert life.output() == "early\n"
    assert life.wait() == 0


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) DESCRIPTION: standard input and output")
@pytest.mark.covers("slurm-scrun messages in the container's standard error")
@pytest.mark.covers("promise standard input, output and error")
def test_stdout_and_stderr_are_apart(site: Site) -> None:
    life = site.shell("echo out; echo err >&2; echo out; echo err >&2; exit 5").created().start()
    assert life.wait() == 5
    assert life.output() == "out\nout\n"
    assert life.errors() == "err\nerr\n"


@pytest.mark.both_engines
@pytest.mark.covers("promise standard input, output and error")
def test_stdio_as_files(site: Site, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("from a file\n")
    (tmp_path / "out").write_text("before\n")
    with (
        (tmp_path / "in").open() as stdin,
        (tmp_path / "out").open("a") as stdout,
        (tmp_path / "err").open("w") as stderr,
    ):
        for file in (stdin, stdout, stderr):
            os.fchown(file.fileno(), site.user.uid, site.user.gid)
        life = site.shell(
            "cat; echo err >&2; exit 4",
            stdin=stdin.fileno(),
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
        )
        life.created().start()
        assert life.wait() == 4
    assert (tmp_path / "out").read_text() == "before\nfrom a file\n"
    assert (tmp_path / "err").read_text() == "err\n"


@pytest.mark.every_launch
@pytest.mark.covers("promise standard input, output and error")
@pytest.mark.parametrize("kind", ["null", "closed"])
def test_stdio_as_nothing(site: Site, kind: Any) -> None:
    life = site.shell("cat; echo out; echo err >&2; exit 6", stdin=kind, stdout=kind, stderr=kind)
    assert life.created().start().wait() == 6


@pytest.mark.covers("promise standard input, output and error")
@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr"])
@one_each
def test_one_of_stdio_closed(site: Site, closed: str) -> None:
    how: dict[str, Any] = {"stdin": "null", "stdout": "null", "stderr": "null", closed: "closed"}
    assert site.shell("cat; exit 6", **how).created().start().wait() == 6


@pytest.mark.both_engines
@pytest.mark.covers("scrun(1) DESCRIPTION: standard input and output")
@pytest.mark.covers("promise standard input, output and error")
@pytest.mark.timeout(300)
@one_each
def test_much_data_each_way(site: Site, dice: random.Random) -> None:
    size, block = often(64, 256) << 20, 1 << 20
    sent, received = hashlib.blake2b(), hashlib.blake2b()
    source, sink = os.pipe()
    back, out = os.pipe()
    life = site.life("cat", stdin=source, stdout=out).created()
    os.close(source)
    os.close(out)
    life.start()

    def feed() -> None:
        with open(sink, "wb", buffering=0) as pipe:
            for _ in range(size // block):
                data = dice.randbytes(block)
                sent.update(data)
                view = memoryview(data)
                while view:
                    view = view[pipe.write(view) :]

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    total = 0
    with open(back, "rb", buffering=0) as pipe:
        while data := pipe.read(block):
            received.update(data)
            total += len(data)
    feeder.join(10)
    assert life.wait() == 0
    assert total == size
    assert received.digest() == sent.digest()
    assert life.errors() == ""


# 4. Terminals


@pytest.mark.everywhere
@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) CREATE OPTIONS: --console-socket", "promise terminals")
def test_terminal_has_its_size(site: Site) -> None:
    # it stays until that was read: crun 1.21 takes what one that ends at once says for its own log
    script = "test -t 0 && test -t 1 && test -t 2 && stty size; read line"
    life = site.shell(script, terminal=True)
    terminal = life.terminal()
    life.created()
    terminal.resize(41, 123)
    life.start()
    terminal.read_until("41 123")
    terminal.write("\n")
    assert life.wait() == 0
    terminal.close()


@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) CREATE OPTIONS: --console-socket", "promise terminals")
def test_resize_arrives(site: Site) -> None:
    # the first size may come while it runs, with a signal of its own: only the second one counts
    script = """
        trap 'size=$(stty size); echo "$size"; [ "$size" != "42 142" ] || exit 9' WINCH
        echo up; while :; do sleep 0.1; done
    """
    life = site.shell(script, terminal=True)
    terminal = life.terminal()
    life.created()
    terminal.resize(24, 80)
    life.start()
    terminal.read_until("up")
    terminal.resize(42, 142)
    terminal.read_until("42 142")
    assert life.wait() == 9
    terminal.close()


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) CREATE OPTIONS: --console-socket", "promise terminals")
def test_interrupt_character_arrives(site: Site) -> None:
    script = "trap 'echo interrupted; exit 8' INT; echo up; while :; do sleep 0.1; done"
    life = site.shell(script, terminal=True)
    terminal = life.terminal()
    life.created().start()
    terminal.read_until("up")
    terminal.write("\x03")
    terminal.read_until("interrupted")
    assert life.wait() == 8
    terminal.close()
    by_srun = site.engine == "slurm" and not site.by_shim
    half = by_srun and not slurm_version().real_terminal
    said = "^C reaches the first process only" in site.must("logs", "--messages", life.id)
    assert said is half


@pytest.mark.covers("promise terminals")
def test_input_and_output_on_a_terminal(site: Site) -> None:
    life = site.shell('read line; echo "got $line"; exit 2', terminal=True)
    terminal = life.terminal()
    life.created().start()
    terminal.says_got()
    assert life.wait() == 2
    terminal.read_all()
    terminal.close()


@pytest.mark.covers("promise terminals")
@pytest.mark.parametrize("started", [True, False])
def test_master_closed_early_ends_the_container(site: Site, started: bool) -> None:
    life = site.shell("trap 'exit 3' HUP; echo up; while :; do sleep 0.1; done", terminal=True)
    terminal = life.terminal()
    life.created()
    if started:
        life.start()
        terminal.read_until("up")
    made_by = site.root / life.id / "runtime.json"
    held = not started and made_by.exists() and "crun" in made_by.read_text()
    terminal.close()
    if held:  # nothing in a container that crun has created takes the signal
        life.run("delete", "--force")
        return
    assert life.wait() != 0
    assert life.status == "stopped"


@pytest.mark.covers("scrun(1) CREATE OPTIONS: --console-socket", "promise terminals")
def test_terminal_without_a_console_socket_is_refused(site: Site) -> None:
    bundle = site.bundle(site.config("true", terminal=True))
    assert "console" in site.fails("create", "--bundle", str(bundle), "bad")


# 5. kill and delete in every phase


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) SYNOPSIS: kill", "promise kill and delete in each state")
@pytest.mark.parametrize(("name", "status"), [("TERM", 143), ("SIGKILL", 137)])
def test_kill_created(site: Site, name: str, status: int) -> None:
    life = site.life("sleep", "600").created()
    life.kill(name)
    # here there is a process already, which as the first of its namespace obeys KILL alone
    assert life.wait() == (137 if site.engine == "local" else status)
    assert life.status == "stopped"
    life.delete()
    site.settle()


@pytest.mark.covers("promise kill and delete in each state")
def test_other_signals_leave_a_created_container(site: Site) -> None:
    life = site.life("true").created()
    life.kill("USR1")
    assert life.status == "created"
    assert life.start().wait() == 0


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) SYNOPSIS: kill", "promise kill and delete in each state")
def test_signals_reach_a_running_container(site: Site) -> None:
    script = "trap 'echo got; exit 11' USR1; echo up; while :; do sleep 0.1; done"
    life = site.shell(script).created().start().says("up")
    life.kill("sigusr1")
    assert life.wait() == 11
    assert life.output() == "up\ngot\n"


@pytest.mark.both_engines
@pytest.mark.covers("promise kill and delete in each state")
@one_each
def test_signals_reach_the_first_process_only(site: Site) -> None:
    script = "trap 'echo got' USR1; sleep 600 & child=$!; echo up; wait; kill -0 $child && exit 21"
    life = site.shell(script).created().start().says("up")
    life.kill("USR1")
    assert life.wait() == 21
    assert life.output() == "up\ngot\n"
    assert life.errors() == ""


@pytest.mark.both_engines
@pytest.mark.covers("promise kill and delete in each state")
def test_kill_right_after_start_is_not_lost(site: Site) -> None:
    for _ in range(often(5, 20)):
        life = site.life("sleep", "600").created().start()
        life.kill("KILL")
        life.ends(137, 10)


@pytest.mark.both_engines
@pytest.mark.covers("promise kill and delete in each state")
def test_ignored_signals_are_ignored(site: Site) -> None:
    life = (
        site.shell("trap '' TERM; echo up; read line; exit 12", stdin="pipe")
        .created()
        .start()
        .says("up")
    )
    life.kill("TERM")
    threading.Event().wait(0.5)
    assert life.status == "running"
    life.close_stdin()
    assert life.wait() == 12


@pytest.mark.both_engines
@pytest.mark.covers("scrun(1) SYNOPSIS: kill", "promise kill and delete in each state")
def test_kill_stopped(site: Site) -> None:
    life = site.life("true").created().start()
    life.wait()
    life.wait_for("stopped")
    for name in ("TERM", "KILL", "USR1"):
        assert site.fails("kill", life.id, name) == (
            f"scrun: container not running: {life.id} is stopped\n"
        )
        site.must("kill", "--all", life.id, name)
    assert life.wait() == 0


@pytest.mark.covers("promise kill and delete in each state")
@pytest.mark.parametrize("site", ["local-root"], indirect=True)
def test_kill_stopped_is_as_with_the_runtimes(site: Site, tmp_path: Path) -> None:
    config = make_config(["sh", "-c", "exit 0"], str(site.rootfs))
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
    bundle = write_bundle(tmp_path / "bundle", config)
    life = site.life("true").created().start().wait_for("stopped")
    ours = site.run("kill", life.id, "KILL")
    for runtime in RUNTIMES:
        beside = Beside(runtime, tmp_path / runtime)
        with beside.running(bundle) as container:

            def stopped(beside: Beside = beside, container: str = container) -> bool:
                return '"stopped"' in beside.run("state", container).stdout

            wait_until("it is stopped", stopped)
            done = beside.run("kill", container, "KILL")
            assert (done.returncode, done.stdout) == (ours.returncode, ours.stdout)
            if runtime == "runc":
                assert "container not running" in done.stderr


@pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)
def test_all_that_match(site: Site) -> None:
    lives = [
        site.life("sleep", "600", container=name).created() for name in ("web-1", "web-2", "db")
    ]
    site.must("kill", "--regex", "web-[0-9]", "KILL")
    for life in lives[:2]:
        assert life.wait() == 137
    assert site.fails("delete", "--regex", "we") == (
        "scrun: no container matches 'we': it does not exist\n"
    )
    assert "is not a regular expression" in site.fails("delete", "-r", "(")
    site.must("delete", "--regex", "--force", "nobody.*")
    site.must("delete", "--regex", "web-.*")
    assert site.must("list", "--quiet") == "db\n"
    lives[2].delete()


@pytest.mark.covers("scrun(1) delete of several, and of one that runs")
@pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)
def test_several_are_deleted_and_a_line_says_which_ran(site: Site) -> None:
    runs, created, third, gone = (
        site.life("sleep", "600", container=name).created() for name in ("a", "b", "c", "d")
    )
    runs.start().wait_for("running")
    third.start().wait_for("running")
    gone.start().wait_for("running")
    gone.kill("KILL")
    assert gone.wait() == 137
    killed = site.life("sleep", "600", container="e").created().start()
    killed.wait_for("running")
    killed.kill("KILL")
    site.must("delete", "e")  # without a line, whether the signal has arrived or not
    assert killed.wait() == 137
    done = site.run("delete", "nobody", "a", "b", "d")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "scrun: container nobody does not exist",
        "scrun: container a was ended: it was running; --force says that you mean it",
    ]
    assert site.must("list", "--quiet") == "c\n"
    done = site.run("delete", "--force", "nobody", "c")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [life.wait() for life in (runs, created, third)] == [137] * 3


def test_signal_0_only_looks(site: Site) -> None:
    life = site.shell("trap 'echo got it' HUP TERM; echo up; while :; do sleep 0.1; done")
    life.created()
    life.kill("0")
    life.start().says("up")
    life.kill("0")
    assert life.status == "running"
    life.kill("KILL")
    life.wait()
    life.wait_for("stopped")
    assert "not running" in site.fails("kill", life.id, "0")
    assert "got it" not in life.output()


@pytest.mark.covers("promise a bad bundle is refused before a job is asked for")
def test_unknown_signal_is_refused(site: Site) -> None:
    life = site.life("sleep", "600").created()
    assert "NOSUCH" in site.fails("kill", life.id, "NOSUCH")
    assert life.status == "created"


@pytest.mark.both_engines
@pytest.mark.covers("scrun(1) SIGNALS", "promise kill and delete in each state")
def test_signals_to_the_anchor_are_passed_on(site: Site) -> None:
    script = "trap 'echo got; exit 13' USR1; echo up; while :; do sleep 0.1; done"
    life = site.shell(script).created().start().says("up")
    os.kill(life.anchor, signal.SIGUSR1)
    assert life.wait() == 13
    assert life.output() == "up\ngot\n"


@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) SIGNALS")
@pytest.mark.covers("slurm-scrun any signal kills the anchor, job and container go on")
@pytest.mark.covers("promise kill and delete in each state")
@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_signals_that_end_the_anchor_end_the_container(site: Site) -> None:
    script = "trap '' TERM INT HUP QUIT; echo up; while :; do sleep 1; done"
    lives = {
        number: site.shell(script).created().start()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    }
    for number, life in lives.items():
        life.says("up")
        os.kill(life.anchor, number)
    for number, life in lives.items():
        assert life.wait() == 128 + number
        assert life.status == "stopped"
        life.delete()
    site.settle()


@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_a_second_signal_to_the_anchor_is_not_waited_for(site: Site) -> None:
    """Who asks for an end again has seen that the container does not obey."""
    life = site.shell("trap '' TERM; trap 'echo got' INT; echo up; while :; do sleep 0.1; done")
    life.created().start().says("up")
    os.kill(life.anchor, signal.SIGINT)
    life.says("got")
    os.kill(life.anchor, signal.SIGTERM)
    assert life.wait(3) == 128 + signal.SIGTERM
    life.delete()


@pytest.mark.covers("scrun(1) SYNOPSIS: delete", "promise kill and delete in each state")
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_delete_created(site: Site, force: list[str]) -> None:
    life = site.life("sleep", "600").created()
    life.must("delete", *force)
    assert life.wait() != 0
    assert life.status == "gone"
    site.settle()


@pytest.mark.both_engines
@pytest.mark.every_launch
@pytest.mark.covers("scrun(1) SYNOPSIS: delete")
@pytest.mark.covers("scrun(1) DELETE OPTIONS: --force")
@pytest.mark.covers("promise kill and delete in each state")
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_delete_running(site: Site, force: list[str]) -> None:
    life = (
        site.shell("trap '' TERM; echo up; while :; do sleep 1; done").created().start().says("up")
    )
    done = site.run("delete", *force, life.id)
    said = f"scrun: container {life.id} was ended: it was running; --force says that you mean it\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "" if force else said)
    assert life.wait() != 0
    assert life.status == "gone"
    site.settle()


@pytest.mark.covers("scrun(1) SYNOPSIS: kill")
@pytest.mark.covers("slurm-scrun kill and delete while pending do nothing, or hang")
@pytest.mark.covers("promise kill and delete in each state")
@pytest.mark.parametrize(("name", "status"), [("TERM", 143), ("KILL", 137)])
@on_slurm
def test_kill_creating(site: Site, name: str, status: int) -> None:
    with cluster.full(site.user):
        life = site.life("true").wait_for("creating")
        wait_until("the job waits", lambda: any("PENDING" in j for j in cluster.jobs(site.user)))
        life.kill(name)
        assert str(life.refused())
        wait_while("the job", lambda: [j for j in cluster.jobs(site.user) if "full" not in j], 2)
        assert life.status == "gone"


@pytest.mark.covers("promise kill and delete in each state")
@on_slurm
def test_other_signals_leave_a_container_that_is_creating(site: Site) -> None:
    with cluster.full(site.user):
        life = site.life("true").wait_for("creating")
        assert site.fails("kill", life.id, "USR1")
        assert site.fails("start", life.id)
        assert life.status == "creating"
    assert life.created().start().wait() == 0


@pytest.mark.parametrize("place", ["local-root", "slurm-user"])
@pytest.mark.parametrize("waits", [False, True], ids=["", "longer than create"])
def test_it_is_creating_only_until_create_returns(
    make_site: MakeSite, place: str, waits: bool
) -> None:
    """Then it is created, and can be started, also if its bundle is still being staged."""
    site = make_site(place, create_timeout=0.5 if waits else 60)
    stage_slowly(site)
    life = site.life("true").wait_for("creating")
    assert "it is creating, not created" in site.fails("start", life.id)
    assert life.created().status == "created"
    assert life.start().wait() == 0, life.errors()
    life.delete()


@pytest.mark.covers("scrun(1) SYNOPSIS: delete")
@pytest.mark.covers("slurm-scrun kill and delete while pending do nothing, or hang")
@pytest.mark.covers("promise kill and delete in each state")
@on_slurm
def test_delete_creating(site: Site) -> None:
    with cluster.full(site.user):
        life = site.life("true").wait_for("creating")
        life.delete()
        assert str(life.refused())
        wait_while("the job", lambda: [j for j in cluster.jobs(site.user) if "full" not in j], 2)
        assert life.status == "gone"


@pytest.mark.covers("promise kill and delete in each state")
@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_create_that_is_killed_leaves_nothing(site: Site) -> None:
    with cluster.full(site.user):
        life = site.life("true").wait_for("creating")
        creates = [p for p in site.processes() if "create" in p.argv and p.is_scrun]
        for create in creates:
            if not any("subreaper" in argument for argument in create.argv):
                os.kill(create.pid, 9)
        assert life.create_status() == -9
        wait_while("the job", lambda: [j for j in cluster.jobs(site.user) if "full" not in j], 5)


def test_ids_can_be_used_again(site: Site) -> None:
    for _ in range(2):
        life = site.life("true", container="again").created().start()
        life.ends()
        shutil.rmtree(life.pid_file.parent)
    assert whole_life(site) == 0
