"""What a shim does with containers: real runtimes, real processes."""

import contextlib
import functools
import hashlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrun.supervisor.engines.failures import program_failure
from scrun.supervisor.wire.frames import CLOSED, DATA, WINDOW
from tests.component.supervisor.shim.conftest import MakeShim, without_crun
from tests.harness import users
from tests.harness.bundle import make_config, map_user
from tests.harness.processes import descendants, processes_of
from tests.harness.shim import Shim
from tests.harness.wait import wait_until, wait_while

MIB = 1 << 20


@pytest.mark.parametrize(
    ("script", "status"), [("true", 0), ("exit 7", 7), ("kill -KILL $$; exit 1", 1)]
)
def test_a_life(shim: Shim, script: str, status: int) -> None:
    streams = shim.streams()
    reply = shim.create("a", "sh", "-c", f"echo out; echo err >&2; {script}", streams=streams)
    assert os.path.exists(f"/proc/{reply['pid']}")
    time.sleep(0.05)
    assert not shim.has_ended("a")
    assert not shim.output  # it is created, and not started
    assert shim.call("start", id="a") == {}
    assert shim.ended("a") == status
    assert shim.finish(streams["stdout"], streams["stderr"]) == b"out\n"
    assert shim.output[streams["stderr"]] == b"err\n"
    assert shim.call("delete", id="a") == {}
    names = {"lock", os.path.basename(shim.hello["runtime"])}
    assert set(os.listdir(shim.hello["directory"])) == names
    assert shim.close() == (status, "")


def test_the_end_by_a_signal(shim: Shim) -> None:
    shim.run("a", "sleep", "1000")
    assert shim.call("signal", id="a", number=9, all=False) == {}
    assert shim.ended("a") == -9
    assert shim.call("signal", id="a", number=9, all=False) == {}
    assert shim.call("signal", id="a", number=9, all=True) == {}
    assert shim.close() == (137, "")


def test_one_that_ends_before_anybody_looks(shim: Shim) -> None:
    """The pid file of an exec is read when its process may have ended."""
    shim.run("a", "sleep", "1000")
    for number in range(5):
        assert "pid" in shim.exec(f"b{number}", "a", "sh", "-c", f"exit {number}")
        assert shim.ended(f"b{number}") == number


def test_bytes_arrive_unchanged(shim: Shim) -> None:
    data = random.Random(1).randbytes(5 * MIB)
    streams = shim.streams()
    shim.run("a", "sh", "-c", "tee /dev/stderr", streams=streams)
    shim.write(streams["stdin"], data)
    assert shim.finish(streams["stdout"], streams["stderr"]) == data
    assert shim.output[streams["stderr"]] == data
    assert shim.ended("a") == 0


def test_input_that_nobody_ends(shim: Shim) -> None:
    """Nothing is sent in the stream: the program waits for it."""
    streams = shim.streams()
    shim.run("a", "sh", "-c", "read line; echo got $line", streams=streams)
    time.sleep(0.1)
    assert not shim.has_ended("a")
    shim.write(streams["stdin"], b"x\n", end=False)
    assert shim.finish(streams["stdout"]) == b"got x\n"
    shim.until("closed", lambda: streams["stdin"] in shim.closed)


def test_a_slow_reader_stops_the_writer(shim: Shim) -> None:
    shim.generous = False
    stdout = shim.streams("stdout")
    shim.run("a", "sh", "-c", "yes | head -c 3000000; echo end", streams=stdout)
    number = stdout["stdout"]
    shim.until("a window", lambda: len(shim.output[number]) == WINDOW)
    shim.pump(0.3)
    assert len(shim.output[number]) == WINDOW
    assert not shim.has_ended("a")
    shim.credit(number, 10)
    shim.until("some more", lambda: len(shim.output[number]) == WINDOW + 10)
    shim.credit(number, 10 * MIB)
    assert shim.finish(number) == b"y\n" * 1500000 + b"end\n"


def test_a_program_that_does_not_read_stops_the_supervisor(shim: Shim) -> None:
    stdin = shim.streams("stdin")
    shim.run("a", "sleep", "1000", streams=stdin)
    number = stdin["stdin"]
    for _ in range(WINDOW >> 16):
        shim.allowed[number] -= 1 << 16
        shim.send(DATA, number, bytes(1 << 16))
    shim.pump(0.3)
    assert 0 < shim.allowed[number] <= 1 << 18  # what the pipe took
    assert shim.call("delete", id="a") == {}
    shim.until("closed", lambda: number in shim.closed)


def test_a_reader_that_has_gone(shim: Shim) -> None:
    shim.generous = False
    stdout = shim.streams("stdout")
    shim.run("a", "sh", "-c", "yes; exit $?", streams=stdout)
    shim.until("output", lambda: shim.output)
    shim.send(CLOSED, stdout["stdout"])
    shim.finish(stdout["stdout"])
    assert shim.ended("a") in (1, 128 + signal.SIGPIPE)


def test_a_terminal(shim: Shim) -> None:
    streams = {**shim.streams("terminal"), "rows": 33, "columns": 101}
    terminal = streams["terminal"]
    script = "tty; stty size; read x; trap 'exit 9' INT; stty size; while :; do sleep 0.1; done"
    shim.run("a", "sh", "-c", script, streams=streams)
    shim.until("the first size", lambda: b"33 101" in shim.output[terminal])
    assert shim.call("resize", id="a", rows=20, columns=60) == {}
    shim.write(terminal, b"go\r", end=False)
    shim.until("the second size", lambda: b"20 60" in shim.output[terminal])
    assert b"/dev/" in shim.output[terminal]
    shim.write(terminal, b"\x03", end=False)  # only the controlling terminal makes a signal of it
    assert shim.ended("a") == 9
    assert b"go\r\n" in shim.finish(terminal)


def test_much_output_of_a_terminal(shim: Shim) -> None:
    streams = {**shim.streams("terminal"), "rows": 24, "columns": 80}
    shim.run("a", "sh", "-c", "stty raw; seq 200000", streams=streams)
    want = "".join(f"{number}\n" for number in range(1, 200001)).encode()
    got = shim.finish(streams["terminal"])
    assert hashlib.sha256(got).digest() == hashlib.sha256(want).digest()


def test_exec(shim: Shim) -> None:
    shim.run("a", "sleep", "1000")
    streams = shim.streams()
    assert "pid" in shim.exec("b", "a", "sh", "-c", "cat; echo err >&2; exit 5", streams=streams)
    shim.write(streams["stdin"], b"text")
    assert shim.finish(streams["stdout"], streams["stderr"]) == b"text"
    assert shim.output[streams["stderr"]] == b"err\n"
    assert shim.ended("b") == 5
    assert shim.call("delete", id="b") == {}
    assert not shim.has_ended("a")


def test_exec_in_a_terminal(shim: Shim) -> None:
    shim.run("a", "sleep", "1000")
    streams = {**shim.streams("terminal"), "rows": 12, "columns": 34}
    terminal = streams["terminal"]
    assert "pid" in shim.exec("b", "a", "sh", "-c", "sleep 0.1; stty size; cat", streams=streams)
    shim.until("its size", lambda: b"12 34" in shim.output[terminal])
    shim.write(terminal, b"\x03", end=False)
    assert shim.ended("b") in (130, -2)
    shim.finish(terminal)


def test_exec_of_a_missing_program(shim: Shim) -> None:
    shim.run("a", "sleep", "1000")
    for streams in (shim.streams(), {**shim.streams("terminal"), "rows": 1, "columns": 1}):
        reply = shim.exec(f"b{len(streams)}{min(streams)}", "a", "missing", streams=streams)
        assert program_failure(reply["error"]) == 127
        assert '"level"' in reply["log"]
        shim.finish(
            *(n for name, n in streams.items() if name not in ("stdin", "rows", "columns"))
        )
    assert not shim.has_ended("a")
    assert "pid" in shim.exec("c", "a", "true")
    assert shim.ended("c") == 0


def test_exec_in_one_that_nobody_may_enter_yet(shim: Shim, rootfs: Path) -> None:
    """As long as it is crun, or another program that its user may not read."""
    hidden = rootfs / "bin" / "busybox.hidden"
    shutil.copy(rootfs / "bin" / "busybox", hidden)
    hidden.chmod(0o711)
    shim.run("a", "/bin/busybox.hidden", "sh", "-c", "sleep 0.7; exec /bin/busybox sleep 1000")
    streams = shim.streams("stdout")
    assert "pid" in shim.exec("b", "a", "echo", "in", streams=streams)
    assert shim.finish(streams["stdout"]) == b"in\n"
    assert shim.ended("b") == 0


def test_execs_end_with_their_container(shim: Shim) -> None:
    shim.run("a", "sleep", "1000")
    for number in range(3):
        assert "pid" in shim.exec(f"b{number}", "a", "sleep", "1000")
    assert shim.call("delete", id="a") == {}
    for target in ("a", "b0", "b1", "b2"):
        assert shim.has_ended(target)
        assert shim.ended(target) == -9
    assert shim.call("delete", id="b0") == {}


def test_an_exec_is_deleted_alone(shim: Shim) -> None:
    shim.run("a", "sleep", "1000")
    assert "pid" in shim.exec("b", "a", "sh", "-c", "trap '' TERM; sleep 1000 & wait")
    assert shim.call("delete", id="b") == {}
    assert shim.ended("b") == -9
    assert not shim.has_ended("a")


def test_a_container_that_cannot_be_made(shim: Shim) -> None:
    streams = shim.streams()
    reply = shim.create("a", "true", streams=streams, root={"path": "/missing/root"})
    assert "/missing/root" in reply["error"]
    assert '"level"' in reply["log"]
    assert shim.finish(streams["stderr"], streams["stdout"]) == b""
    assert shim.call("delete", id="a") == {}
    assert "error" in shim.call("start", id="a")
    # the name is free again
    assert "pid" in shim.create("b", "true")


def test_a_missing_program(shim: Shim) -> None:
    """crun sees it when it creates, runc when it starts."""
    reply = shim.create("a", "missing-program")
    if "error" not in reply:
        reply = shim.call("start", id="a")
    assert program_failure(reply["error"]) == 127
    assert shim.call("delete", id="a") == {}


def test_a_signal_for_all(shim: Shim) -> None:
    stdout = shim.streams("stdout")
    inner = "trap 'echo inner; exit' USR1; echo ready; while :; do sleep 0.1; done"
    script = f"trap 'echo main' USR1; ({inner}) & while :; do wait; done"
    shim.run("a", "sh", "-c", script, streams=stdout)
    shim.until("ready", lambda: b"ready" in shim.output[stdout["stdout"]])
    assert shim.call("signal", id="a", number=signal.SIGUSR1, all=False) == {}
    shim.until("main", lambda: b"main" in shim.output[stdout["stdout"]])
    assert b"inner" not in shim.output[stdout["stdout"]]
    assert shim.call("signal", id="a", number=signal.SIGUSR1, all=True) == {}
    shim.until("inner", lambda: b"inner" in shim.output[stdout["stdout"]])


def test_wrong_signals(shim: Shim) -> None:
    shim.run("a", "sleep", "1000")
    for number in (0, -9, 65, 100000):
        assert "no signal" in shim.call("signal", id="a", number=number, all=False)["error"]
    assert "error" in shim.call("signal", id="b", number=9, all=False)


def test_slurms_variables_win(shim: Shim) -> None:
    stdout = shim.streams("stdout")
    shim.run("a", "sh", "-c", "echo ${TMPDIR-unset} $TERM", streams=stdout)
    assert shim.finish(stdout["stdout"]) == b"unset xterm\n"


def test_delete_of_one_that_runs(shim: Shim) -> None:
    stdout = shim.streams("stdout")
    shim.run("a", "sh", "-c", "sleep 1000 & sleep 1000 & wait", streams=stdout)
    began = time.monotonic()
    assert shim.call("delete", id="a") == {}
    assert time.monotonic() - began < 2
    assert shim.ended("a") == -9
    shim.finish(stdout["stdout"])
    assert shim.call("delete", id="a") == {}
    assert shim.call("delete", id="never-was") == {}
    assert not descendants(shim.process.pid)


def test_delete_of_one_that_was_not_started(shim: Shim) -> None:
    assert "pid" in shim.create("a", "true")
    assert shim.call("delete", id="a") == {}
    assert shim.ended("a") == -9
    assert "pid" in shim.create("b", "true")


def test_two_containers(shim: Shim) -> None:
    shim.run("a", "sleep", "1000")
    shim.run("b", "sh", "-c", "exit 3")
    assert shim.ended("b") == 3
    assert shim.call("delete", id="b") == {}
    assert not shim.has_ended("a")
    assert "exists" in shim.create("a", "true")["error"]


def test_shims_share_no_names(shim: Shim, make_shim: MakeShim) -> None:
    """runc names cgroups after containers, and kills what is in them."""
    other = make_shim(shim.env, shim.user)
    for one in (shim, other):
        one.run("a", "sleep", "1000")
    assert shim.call("delete", id="a") == {}
    other.pump(0.2)
    assert not other.has_ended("a")
    assert other.close()[1] == ""


def test_what_has_ended_is_not_mistaken_for_another(shim: Shim) -> None:
    """The kernel gives the number of a mount namespace that has gone to the next one."""
    for number in range(8):
        shim.run(f"a{number}", "true")
        assert shim.ended(f"a{number}") == 0
    shim.run("b", "sleep", "1000")
    for number in range(8):
        assert shim.call("delete", id=f"a{number}") == {}
    assert not shim.has_ended("b")
    assert shim.call("delete", id="b") == {}


@pytest.mark.parametrize("shim", ["root-crun", "root-runc"], indirect=True)
def test_daemons_without_a_pid_namespace(shim: Shim) -> None:
    """What outlives the first process ends with its container, and only with that."""
    marks = ["1234567", "7654321"]
    linux = {"namespaces": [{"type": kind} for kind in ("ipc", "uts", "mount")]}
    for target, mark in zip("ab", marks, strict=True):
        shim.run(target, "sh", "-c", f"setsid sleep {mark} & exit 0", linux=linux)
        assert shim.ended(target) == 0
    for mark in marks:
        wait_until("the daemon", functools.partial(processes_of, mark))
    assert shim.call("signal", id="a", number=signal.SIGCONT, all=True) == {}
    assert shim.call("delete", id="a") == {}
    wait_while("the first daemon", lambda: processes_of(marks[0]))
    assert processes_of(marks[1])
    shim.close()
    assert not processes_of(marks[1])


_OF_GLIBC = 1 << 31 | 1 << 32  # SIGCANCEL and SIGSETXID


def test_what_a_container_sees_of_the_shim(shim: Shim) -> None:
    """No descriptor of the shim's, and none of its signal dispositions."""
    files, signals = shim.streams("stdout"), shim.streams("stdout")
    shim.run("a", "ls", "/proc/self/fd", streams=files)
    assert shim.finish(files["stdout"]).split() == [b"0", b"1", b"2", b"3"]  # with its own
    shim.run("b", "grep", "-E", "Sig(Ign|Blk)", "/proc/self/status", streams=signals)
    got = shim.finish(signals["stdout"]).split()
    # glibc's posix_spawn has its own two ignored; they are no signals for anybody else
    assert [int(got[place], 16) & ~_OF_GLIBC for place in (1, 3)] == [0, 0]


def test_scripts(shim: Shim) -> None:
    assert shim.call("script", script="echo a; echo b >&2; cat; exit 3") == {
        "status": 3, "text": "a\nb\n",
    }  # fmt: skip
    shim.run("a", "sleep", "1000")
    reply = shim.call("script", script='eval "$SCRUN_RUNTIME state name-a"')
    assert '"running"' in reply["text"]
    assert reply["status"] == 0
    assert shim.call("script", script="kill -9 $$")["status"] == 137
    assert shim.call("script", script="sleep 1000 & echo x") == {"status": 0, "text": "x\n"}


KINDS = ("ipc", "network", "pid", "user", "uts")


def of_a_pod(shim: Shim, *kinds: str) -> dict[str, Any]:
    """Return `linux` of a container with namespaces of these types."""
    config = make_config(("true",), str(shim.rootfs))
    if shim.user.uid:
        map_user(config, shim.user)
    linux: dict[str, Any] = config["linux"]
    own = {"mount", *kinds} if shim.user.uid else {"mount", *kinds} - {"user"}
    return {**linux, "namespaces": [{"type": kind} for kind in sorted(own)]}


def namespaces(pid: int, *kinds: str) -> dict[str, str]:
    names = {"network": "net"}
    return {kind: os.readlink(f"/proc/{pid}/ns/{names.get(kind, kind)}") for kind in kinds}


@pytest.mark.parametrize("kinds", [KINDS, ("ipc", "network", "user", "uts"), ("ipc", "user")])
def test_namespaces_of_another_container(shim: Shim, kinds: tuple[str, ...]) -> None:
    linux = of_a_pod(shim, *KINDS)
    first = shim.create("a", "sleep", "1000", linux=linux, hostname="together")
    assert shim.call("start", id="a") == {}
    wanted = [kind for kind in kinds if kind != "user" or shim.user.uid]
    joins = dict.fromkeys(wanted, "a")
    streams = shim.streams()
    script = "hostname; ls -d /proc/[0-9]*; ip addr show lo | head -n 1"
    second = shim.create(
        "b", "sh", "-c", script, linux=linux, joins=joins, streams=streams, hostname="",
    )  # fmt: skip
    assert "error" not in second, second
    theirs, own = (namespaces(reply["pid"], *KINDS, "mnt") for reply in (first, second))
    same = [kind for kind in (*KINDS, "mnt") if theirs[kind] == own[kind]]
    assert same == sorted({*kinds} | ({"user"} if not shim.user.uid else set()))
    assert shim.call("start", id="b") == {}
    assert shim.ended("b") == 0
    said = shim.finish(streams["stdout"]).decode()
    assert ("together" in said) is ("uts" in kinds)
    assert (said.count("/proc/") > 1) is ("pid" in kinds)
    if "network" in kinds:
        assert "UP,LOWER_UP" in said
    assert shim.call("delete", id="b") == {}
    assert not shim.has_ended("a")
    assert shim.call("delete", id="a") == {}


def test_namespaces_of_one_that_is_being_started(shim: Shim) -> None:
    """Until its program runs, an ordinary user may not look into crun's process."""
    linux = of_a_pod(shim, *KINDS)
    shim.create("a", "sleep", "1000", linux=linux)
    joins = dict.fromkeys(KINDS if shim.user.uid else ("ipc", "pid"), "a")
    config = make_config(("true",), str(shim.rootfs))
    if shim.user.uid:
        map_user(config, shim.user)
    config["linux"] = linux
    fields = {"config": config, "streams": {}, "joins": joins}
    calls = [shim.ask("create", id=name, name=name, **fields) for name in ("b", "c")]
    assert shim.call("delete", id="c") == {}
    time.sleep(0.1)
    assert shim.call("start", id="a") == {}
    assert "pid" in shim.answer(calls[0])
    assert shim.call("start", id="b") == {}
    assert shim.ended("b") == 0


def test_namespaces_of_one_that_is_not_there(shim: Shim) -> None:
    shim.run("a", "true")
    shim.ended("a")
    for missing in ("a", "b"):
        reply = shim.create("c", "true", joins={"ipc": missing})
        assert missing in reply["error"]
    shim.run("c", "true")


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group with 48 MiB of memory, and no swap."""
    top = Path("/sys/fs/cgroup/memory")
    limit, swap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
    if not top.exists():
        top, limit, swap = top.parent, "memory.max", "memory.swap.max"
    group = top / f"scrun-test-{os.getpid()}"
    group.mkdir()
    try:
        if not (group / limit).exists():
            pytest.skip("no control group limits memory here")
        (group / limit).write_text(str(48 * MIB))
        with contextlib.suppress(OSError):  # the kernel counts no swap
            (group / swap).write_text("0" if limit == "memory.max" else str(48 * MIB))
        yield group
    finally:
        wait_while("processes", lambda: (group / "cgroup.procs").read_text())
        group.rmdir()


def test_whose_memory_ran_out(make_shim: MakeShim, little_memory: Path) -> None:
    """Slurm knows it of a step, which several containers share, and only when that ends."""
    enter = ("sh", "-c", f'echo $$ >{little_memory}/cgroup.procs && exec "$@"', "sh")
    shim = make_shim(user=users.ordinary(), place=enter)
    for target in ("a", "b"):
        shim.run(target, "sleep", "1000")
    shim.run("greedy", "sh", "-c", "head -c 200m /dev/zero | tail -c 200m | wc -c; exit 137")
    assert shim.ended("greedy") == 137
    assert shim.call("signal", id="a", number=9, all=True) == {}
    assert shim.ended("a") == -9
    assert shim.short_of_memory == {"greedy"}
    assert not shim.has_ended("b")
    shim.end()


_WITH_PMI = """
import os, socket, sys
ours, theirs = socket.socketpair()
ours.sendall(b"from the server\\n")
for one in (ours, theirs):
    os.set_inheritable(one.fileno(), True)
os.environ["PMI_FD"] = str(theirs.fileno())
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_the_first_container_can_talk_to_pmi(
    make_shim: MakeShim, rootfs: Path, runtime: str
) -> None:
    env = {"PATH": without_crun(rootfs)} if runtime == "runc" else {}
    before = (sys.executable, "-ISc", _WITH_PMI)
    shim = make_shim(env, users.ordinary(), before)
    assert os.path.basename(shim.hello["runtime"]) == runtime
    script = "ls /proc/self/fd; echo $PMI_FD; read -r line <&3 && echo $line"
    said = {}
    for name in ("first", "second"):
        streams = shim.streams("stdout", "stderr")
        shim.run(name, "sh", "-c", script, streams=streams)
        said[name] = shim.finish(streams["stdout"], streams["stderr"]).decode().split("\n")
        shim.ended(name)
    assert said["first"] == ["0", "1", "2", "3", "4", "3", "from the server", ""]
    assert said["second"][:-1] == ["0", "1", "2", "3", ""]  # 3 is what ls reads
    exec_streams = shim.streams("stdout")
    shim.run("third", "sleep", "1000")
    assert "error" not in shim.exec("e", "third", "env", streams=exec_streams)
    assert b"PMI_FD" not in shim.finish(exec_streams["stdout"])


@pytest.mark.parametrize("runs", [True, False])
def test_crun_is_run_where_nobody_can_write_to_it(make_shim: MakeShim, runs: bool) -> None:
    """Else it starts itself once more; a kernel may be told to run nothing from memory."""
    forbid = 'echo 2 >/proc/sys/vm/memfd_noexec && exec "$@"'
    before = () if runs else ("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", forbid, "")
    shim = make_shim(before=before)
    pid = shim.create("a", "true")["pid"]
    if runs:
        assert os.readlink(f"/proc/{pid}/exe").startswith("/memfd:crun")
    assert shim.call("start", id="a") == {}
    assert shim.ended("a") == 0
    assert shim.call("delete", id="a") == {}


_RACE = """#!/bin/sh
echo "$@" >>{calls}
case "$*" in *create*) [ "$(grep -c create {calls})" -gt {races} ] || {{
    while [ "$1" != --log ]; do shift; done
    echo '{{"level":"error","msg":"container init: mkdirat /x/y: file exists"}}' >>"$2"
    echo "runc: file exists" >&2
    exit 1
}};; esac
exec {runc} "$@"
"""


@pytest.mark.parametrize(("races", "works"), [(1, True), (5, True), (6, False)])
def test_another_task_makes_a_mount_point(
    make_shim: MakeShim, rootfs: Path, races: int, works: bool
) -> None:
    """runc 1.3 fails then, which no test can have on demand: nobody sees it."""
    place = rootfs.parent / f"races-{races}"
    place.mkdir()
    calls, program = place / "calls", place / "runc"
    program.write_text(_RACE.format(calls=calls, races=races, runc=shutil.which("runc")))
    program.chmod(0o755)
    shim = make_shim({"PATH": f"{place}:{without_crun(rootfs)}"})
    streams = shim.streams()
    reply = shim.create("a", "sh", "-c", "cat; echo err >&2", streams=streams)
    assert ("pid" in reply) == works
    if not works:
        assert "file exists" in reply["error"]
        return
    assert shim.call("start", id="a") == {}
    shim.write(streams["stdin"], b"in\n")
    assert shim.finish(streams["stdout"], streams["stderr"]) == b"in\n"
    assert shim.output[streams["stderr"]] == b"err\n"
    assert shim.ended("a") == 0
    assert shim.call("delete", id="a") == {}
