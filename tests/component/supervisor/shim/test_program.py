"""A shim's own life: hello, its runtime, its signals, its end, and what it leaves."""

import os
import re
import shutil
import stat
import threading
import time
from pathlib import Path

import pytest

from scrun.supervisor.wire.frames import (
    CALL,
    DATA,
    PROTOCOL,
    SCRIPT_OUTPUT,
    frame,
)
from tests.component.supervisor.shim.conftest import MakeShim
from tests.harness.processes import descendants, processes_of, voluntary_switches
from tests.harness.shim import Shim
from tests.harness.wait import wait_until, wait_while

ENTRY = '{"level": "error", "msg": "from the log"}'


@pytest.fixture
def plain(make_shim: MakeShim) -> Shim:
    return make_shim()


def fake(directory: Path, script: str) -> dict[str, str]:
    """Make a crun of a script; return the environment that finds it."""
    directory.mkdir(exist_ok=True)
    path = directory / "crun"
    path.write_text(f"#!/bin/sh\ncase $* in *--version) exit;; esac\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


def test_hello(plain: Shim, folder: Path) -> None:
    hello = plain.hello
    assert hello["protocol"] == PROTOCOL
    assert hello["node"] == os.uname().nodename
    assert hello["pid"] == plain.process.pid
    assert re.fullmatch(r"3\.\d+\.\d+", hello["python"])
    assert os.access(hello["runtime"], os.X_OK)
    directory = Path(hello["directory"])
    assert directory.parent == folder
    assert re.fullmatch(f"scrun-{os.geteuid()}-[a-z0-9]{{6}}", directory.name)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert hello["environment"] == {}
    assert plain.close() == (0, "")


def test_no_runtime(make_shim: MakeShim, tmp_path: Path) -> None:
    for name in ("crun", "runc"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    shim = make_shim(env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert shim.hello["runtime"] == ""
    assert "no OCI runtime" in shim.create("a", "true")["error"]
    assert shim.call("script", script="true")["status"] == 0


def test_a_crun_that_has_no_directory_of_its_own(make_shim: MakeShim, tmp_path: Path) -> None:
    """Version 1.21 makes one even for its version, where an ordinary user has no right to."""
    refuses = "case $* in *--root*) ;; *) exit 1;; esac"
    (tmp_path / "crun").write_text(f'#!/bin/sh\n{refuses}\nexec {shutil.which("crun")} "$@"\n')
    (tmp_path / "crun").chmod(0o755)
    shim = make_shim(env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert shim.hello["runtime"] == str(tmp_path / "crun")
    shim.run("a", "true")
    assert shim.ended("a") == 0


def test_a_folder_that_cannot_be_written(make_shim: MakeShim) -> None:
    shim = make_shim(env={"TMPDIR": "/proc"})
    assert shim.hello["directory"].startswith("/dev/shm/")
    shim.close()
    assert not os.path.exists(shim.hello["directory"])


def test_the_environment_need_not_be_text(make_shim: MakeShim) -> None:
    shim = make_shim(env={"SLURMD_NODENAME": os.fsdecode(b'\xff\n"')})
    assert shim.hello["environment"] == {"SLURMD_NODENAME": '\ufffd\n"'}


def test_end_of_input_ends_everything(plain: Shim) -> None:
    plain.run("a", "sh", "-c", "trap '' TERM; sleep 1000 & wait")
    plain.run("b", "sh", "-c", "exit 3")
    plain.ended("b")
    assert "pid" in plain.create("c", "true")
    assert "pid" in plain.exec("d", "a", "sleep", "1000")
    mark = plain.hello["directory"]
    plain.ask("script", script="setsid sleep 1000 & sleep 1000")
    began = time.monotonic()
    assert plain.close()[1] == ""
    assert time.monotonic() - began < 3
    assert not os.path.exists(mark)
    assert not processes_of(mark)


def test_nobody_reads_any_more(plain: Shim) -> None:
    plain.run("a", "sleep", "1000")
    assert plain.process.stdout is not None
    os.dup2(os.open("/dev/null", os.O_RDWR), plain.process.stdout.fileno())
    plain.process.wait(5)
    assert not os.path.exists(plain.hello["directory"])


@pytest.mark.parametrize("garbage", [b"\xff" * 9, frame(CALL, 0, b"{"), frame(CALL, 0, b"[]")])
def test_garbage_ends_it(plain: Shim, garbage: bytes) -> None:
    plain.run("a", "sleep", "1000")
    assert plain.process.stdin is not None
    plain.process.stdin.write(garbage)
    status, _ = plain.wait()
    assert status in (1, 137)
    assert not os.path.exists(plain.hello["directory"])


def test_calls_that_are_wrong(plain: Shim) -> None:
    for verb in (
        "create",
        "exec",
        "signal",
        "start",
        "resize",
        "delete",
        "script",
    ):
        assert "error" in plain.call(verb)
    assert "error" in plain.call("create", id="a", name="n", config=[], streams={})
    assert "error" in plain.call("create", id="a", name="n", config={}, streams={"stdin": "x"})
    plain.rootfs = Path("/missing")
    assert "error" in plain.create("a", "true")
    plain.send(DATA, 77, b"of no stream")
    assert plain.call("delete", id="a") == {}
    assert plain.close() == (0, "")


def test_what_a_dead_shim_left_is_removed(make_shim: MakeShim, rootfs: Path) -> None:
    first = make_shim()
    first.run("a", "sleep", "1000")
    container = first.call("script", script="true") and descendants(first.process.pid)
    living = make_shim()
    left = Path(first.hello["directory"])
    first.process.kill()
    first.process.wait()
    assert left.exists()
    assert all(os.path.exists(f"/proc/{pid}") for pid in container)
    foreign = left.parent / f"scrun-{os.geteuid()}-foreig"
    foreign.mkdir(mode=0o755)
    (foreign / "lock").touch()
    link = left.parent / f"scrun-{os.geteuid()}-linked"
    link.symlink_to(rootfs)
    next_one = make_shim()
    wait_while("what the first left", left.exists)
    wait_while("its container", lambda: [p for p in container if os.path.exists(f"/proc/{p}")])
    assert os.path.exists(living.hello["directory"])
    assert (foreign / "lock").exists()
    assert (rootfs / "bin").is_dir()
    assert next_one.close() == (0, "")
    (foreign / "lock").unlink()
    foreign.rmdir()
    link.unlink()
    living.close()


def test_shims_that_start_together(make_shim: MakeShim) -> None:
    """None takes another's new directory for a dead one's."""
    shims: list[Shim] = []
    threads = [threading.Thread(target=lambda: shims.append(make_shim())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({shim.hello["directory"] for shim in shims}) == 8
    time.sleep(0.3)
    assert all(os.path.exists(shim.hello["directory"] + "/lock") for shim in shims)
    assert [shim.close() for shim in shims] == [(0, "")] * 8


def test_no_wake_up_when_nothing_happens(plain: Shim) -> None:
    streams = plain.streams()
    plain.run("a", "sleep", "1000", streams=streams)
    terminal = {**plain.streams("terminal"), "rows": 24, "columns": 80}
    assert "pid" in plain.exec("b", "a", "sh", "-c", "exec <&-; sleep 1000", streams=terminal)
    stdin = plain.streams("stdin")
    assert "pid" in plain.exec("c", "a", "sh", "-c", "exec <&-; sleep 1000", streams=stdin)
    plain.until("closed", lambda: stdin["stdin"] in plain.closed)
    plain.generous = False
    stdout = plain.streams("stdout")
    assert "pid" in plain.exec("d", "a", "yes", streams=stdout)
    plain.until("its window", lambda: len(plain.output[stdout["stdout"]]) == 1 << 20)
    plain.pump(0.3)
    before = voluntary_switches(plain.process.pid), times(plain.process.pid)
    time.sleep(1)
    assert (voluntary_switches(plain.process.pid), times(plain.process.pid)) == before


def times(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]


def test_delete_stops_a_create_that_hangs(make_shim: MakeShim, tmp_path: Path) -> None:
    env = fake(tmp_path / "bin", "[ $8 = create ] || exit 0\nsetsid sleep 2345678 & wait")
    shim = make_shim(env=env)
    create = shim.ask("create", id="a", name="n", config={}, streams=shim.streams())
    wait_until("the runtime", lambda: processes_of("2345678"))
    assert shim.call("script", script="echo other calls go on")["status"] == 0
    began = time.monotonic()
    delete = shim.ask("delete", id="a")
    assert "deleted" in shim.answer(create)["error"]
    assert shim.answer(delete) == {}
    assert time.monotonic() - began < 2
    assert not processes_of("2345678")
    assert set(os.listdir(shim.hello["directory"])) == {"lock"}


@pytest.mark.parametrize("times", [1, 2])
def test_a_start_that_fails_before_it_begins(
    make_shim: MakeShim, tmp_path: Path, times: int
) -> None:
    """crun 1.8 sometimes cannot copy itself to memory: it is called once more."""
    said = "Failed to re-execute libcrun via memory file descriptor"
    seen = tmp_path / "seen"
    script = f"""\
case $8 in
create) sleep 1000 & echo $! >"${{12}}" ;;
start) echo x >>{seen}; [ $(wc -l <{seen}) -gt {times} ] || {{ echo "{said}" >&2; exit 1; }} ;;
esac
"""
    shim = make_shim(env=fake(tmp_path / "bin", script))
    reply = shim.call("create", id="a", name="n", config={}, streams={})
    assert "error" not in reply
    assert shim.call("start", id="a").get("error") == (said if times == 2 else None)
    assert seen.read_text() == "x\nx\n"


def test_end_with_a_create_that_hangs(make_shim: MakeShim, tmp_path: Path) -> None:
    env = fake(tmp_path / "bin", "[ $8 = create ] || exit 0\nsetsid sleep 3456789 & wait")
    shim = make_shim(env=env)
    shim.ask("create", id="a", name="n", config={}, streams=shim.streams())
    wait_until("the runtime", lambda: processes_of("3456789"))
    assert shim.close() == (0, "")
    assert not processes_of("3456789")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 9", "status 9"),
        ("echo first >&2; echo last word >&2; exit 1", "last word"),
        ("exit 0", "pid"),
        ('echo abc >"${12}"; exit 0', "abc"),
        (f"echo '{ENTRY}' >\"$5\"; echo x >&2; exit 1", "from the log"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["pipes", "terminal"])
def test_runtimes_that_fail(
    make_shim: MakeShim, tmp_path: Path, script: str, said: str, kind: str
) -> None:
    shim = make_shim(env=fake(tmp_path / "bin", script))
    streams = shim.streams() if kind == "pipes" else {**shim.streams("terminal"), "rows": 2}
    reply = shim.call("create", id="a", name="n", config={}, streams=streams)
    assert said in reply["error"]
    assert shim.call("delete", id="a") == {}


def test_a_console_without_a_terminal(make_shim: MakeShim, tmp_path: Path) -> None:
    """crun connects to the socket and sends nothing when it fails after that."""
    connect = "import socket; socket.socket(socket.AF_UNIX).connect('console')"
    for number, end in enumerate(("exit 1", "echo 1 >pid; exit 0")):
        env = fake(tmp_path / str(number), f'[ $8 = create ] && python3 -c "{connect}"\n{end}')
        shim = make_shim(env=env)
        streams = {**shim.streams("terminal"), "rows": 2, "columns": 3}
        assert "error" in shim.call("create", id="a", name="n", config={}, streams=streams)
        assert shim.call("delete", id="a") == {}
        assert shim.close() == (0, "")


def test_output_of_scripts_has_a_limit(plain: Shim) -> None:
    reply = plain.call("script", script=f"head -c {SCRIPT_OUTPUT + 100000} /dev/zero | tr '\\0' x")
    assert reply == {"status": 0, "text": "x" * SCRIPT_OUTPUT}
    reply = plain.call("script", script=f"head -c {SCRIPT_OUTPUT} /dev/zero; exit 3")
    assert reply["status"] == 3
    assert set(reply["text"]) == {"\0"}


def test_it_may_not_be_traced(plain: Shim) -> None:
    """It knows a secret: its /proc files are root's."""
    assert os.stat(f"/proc/{plain.process.pid}/environ").st_uid == 0
