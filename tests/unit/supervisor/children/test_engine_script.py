"""The scripts that work beside a container, run by real shells on real processes."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from scrun.core.errors import BundleError
from scrun.supervisor.children.node_scripts import (
    exec_script,
    list_script,
    process_variables,
    signal_script,
    stats_script,
)
from tests.harness import users
from tests.harness.load import MIB
from tests.harness.processes import descendants
from tests.harness.program import run_program
from tests.harness.wait import wait_until

SHELLS = [words for words in (["/bin/sh"], ["bash"], ["busybox", "sh"]) if shutil.which(words[0])]
EMPTY = process_variables({})
COMMAND = f"cat {shlex.quote('/proc/self/fd/9')}"
ODD = "a\n\t\0\x01\x7f'\"\\`$(x)${y}%s%%\\n\\\\ä€😀 -e "


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = request.param
    return found


def run(
    shell: list[str], script: str, *words: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script as the engines do."""
    return run_program(
        [*shell, "-c", script, "sh", *words],
        env={"PATH": users.PATH, **environment},
        input="typed",
    )


@pytest.mark.parametrize("length", [0, 1, 99_980, 100_000, 131_072, 300_000, 1_400_000])
def test_the_program_arrives_whole(shell: list[str], length: int, tmp_path: Path) -> None:
    process = {"args": [ODD, "x" * length]}
    variables = process_variables(process)
    assert all(len(f"{name}={value}") < 128 << 10 for name, value in variables.items())
    script = exec_script(COMMAND, "", variables)
    done = run(shell, script, TMPDIR=str(tmp_path), **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == process
    assert os.listdir(tmp_path) == []


def test_too_long_a_program_is_refused() -> None:
    with pytest.raises(BundleError, match=r"process: its 15000.. bytes exceed the limit"):
        process_variables({"args": ["x" * 1_500_000]})


@pytest.mark.parametrize(
    "command",
    [
        "{}",
        "exec {}",
        "A=b {}",
        "A='b c' {}",
        "cd / && {}",
        "{}; exit $?",
        "true; {}",
        "{{ {}; }}",
        "! false && {}",
        "( {} )",
        "if true; then {}; fi",
        "{} 2>&1",
    ],
)
def test_a_site_s_command_may_be_anything_of_a_shell(shell: list[str], command: str) -> None:
    done = run(shell, exec_script(command.format(COMMAND), "true", EMPTY), **EMPTY)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{}", "")


@pytest.mark.parametrize(
    "command", ["sh -c {}", "A=b sh -c {}", "exec sh -c {}", "sh -c {} 'a;b|c' \"d & e\""]
)
def test_a_single_command_is_signalled_itself(shell: list[str], command: str) -> None:
    script = exec_script(command.format(shlex.quote("echo $$; exec sleep 60")), "", EMPTY)
    with subprocess.Popen([*shell, "-c", script], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert int(running.stdout.readline()) == running.pid
        finally:
            running.kill()


def test_its_status_standard_input_and_umask_are_its_own(shell: list[str]) -> None:
    script = exec_script("sh -c 'umask; cat; exit 7'", "cat >&2; true", EMPTY)
    umask = os.umask(0o027)
    try:
        done = run(shell, script, **EMPTY)
    finally:
        os.umask(umask)
    assert done.returncode == 7
    assert done.stdout.lstrip("0") == "27\ntyped"


def test_it_waits_until_the_runtime_knows_the_container(tmp_path: Path) -> None:
    state = f"echo >>{tmp_path}/tries; test $(wc -l <{tmp_path}/tries) -ge 3"
    done = run(["/bin/sh"], exec_script("echo runs", state, EMPTY), **EMPTY)
    assert (done.returncode, done.stdout) == (0, "runs\n")
    assert (tmp_path / "tries").read_text() == "\n" * 3


def test_a_file_that_cannot_be_made(shell: list[str], tmp_path: Path) -> None:
    script = exec_script("echo runs", "", EMPTY)
    done = run(shell, script, TMPDIR=str(tmp_path / "none"), **EMPTY)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("mktemp: ")


def test_a_file_that_cannot_be_written_is_not_left(shell: list[str], tmp_path: Path) -> None:
    # as on a full disk, but write(2) says EFBIG
    script = f"trap '' XFSZ; ulimit -f 0; {exec_script('echo runs', '', EMPTY)}"
    done = run(shell, script, TMPDIR=str(tmp_path), **EMPTY)
    assert (done.returncode, done.stdout) == (125, "")
    assert os.listdir(tmp_path) == []


def test_only_the_file_has_what_was_in_the_variables(shell: list[str], tmp_path: Path) -> None:
    state = f"env >{tmp_path}/state"
    done = run(shell, exec_script("env; true", state, EMPTY), **EMPTY)
    assert (done.returncode, done.stderr) == (0, "")
    for environment in (done.stdout, (tmp_path / "state").read_text()):
        assert "PATH=" in environment
        assert "SCRUN_PROCESS" not in environment


def children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


class Inside:
    """Processes that take the place of a container: a first one, and what it has started."""

    def __init__(self, tmp_path: Path, script: str, *, own_namespace: bool) -> None:
        unshare = ["unshare", "--pid", "--fork", "--kill-child"] if own_namespace else []
        self._running = subprocess.Popen(
            [*unshare, "/bin/sh", "-c", f"echo; {script}"], stdout=subprocess.PIPE
        )
        assert self._running.stdout is not None
        self._running.stdout.readline()
        self.first = self._running.pid
        if own_namespace:
            [self.first] = map(int, children(self.first).split())
        self.place = tmp_path / "state.json"
        self.tell({"id": "x", "pid": self.first, "status": "running"})

    def tell(self, state: object, *, indent: int | None = None) -> None:
        self.place.write_text(json.dumps(state, indent=indent))

    @property
    def state(self) -> str:
        """What prints the container's state."""
        return f"cat {shlex.quote(str(self.place))}"

    @property
    def pids(self) -> set[int]:
        return {self.first, *descendants(self.first)}

    def close(self) -> None:
        pids: set[int] = set()
        try:
            pids = self.pids
        finally:
            self._running.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._running.stdout is not None
        self._running.stdout.close()
        self._running.wait()


NAMESPACES = [
    pytest.param(False, id="same-pid-namespace"),
    pytest.param(
        True,
        id="own-pid-namespace",
        marks=pytest.mark.by_root,
    ),
]
THREE = "(sleep 60 & wait) & exec sleep 61"


@pytest.fixture(params=NAMESPACES)
def inside(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Inside]:
    found = Inside(tmp_path, THREE, own_namespace=request.param)
    try:
        wait_until("all processes", lambda: len(found.pids) == 3)
        yield found
    finally:
        found.close()


def listed(shell: list[str], state: str, ps: str = "") -> tuple[set[int], str]:
    """The pids that a script lists, and what ps has printed."""
    done = run(shell, list_script(state, ps))
    assert (done.returncode, done.stderr) == (0, "")
    host, _, rest = done.stdout.partition("\npids\n")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert host == f"host {boot} {os.readlink('/proc/self/ns/pid')}"
    pids, _, table = rest.partition("table\n")
    return {int(pid) for pid in pids.split()}, table


def test_all_processes_are_listed(shell: list[str], inside: Inside) -> None:
    assert listed(shell, inside.state) == (inside.pids, "")
    assert listed(shell, inside.state, "echo 'a b'") == (inside.pids, "a b\n")
    inside.tell({"pid": inside.first, "annotations": {"x": '"pid": 1', "pid": "1"}}, indent=2)
    assert listed(shell, inside.state)[0] == inside.pids
    inside.tell({"annotations": {"x": '"pid": 1', "pid": "1"}, "pid": inside.first})
    assert listed(shell, inside.state)[0] == inside.pids


def test_the_status_is_that_of_ps(shell: list[str], inside: Inside) -> None:
    assert run(shell, list_script(inside.state, "sh -c 'exit 7'")).returncode == 7


def test_what_they_use(shell: list[str], inside: Inside) -> None:
    done = run(shell, stats_script(inside.state))
    assert (done.returncode, done.stderr) == (0, "")
    units, *lines = done.stdout.splitlines()
    before, seconds, limit = units.rsplit(" ", 2)
    assert before == f"units {os.sysconf('SC_CLK_TCK')} {os.sysconf('SC_PAGE_SIZE')}"
    assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - float(seconds) < 20
    assert MIB < int(limit) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert {int(line.split()[0]) for line in lines} == inside.pids


@pytest.mark.parametrize(
    ("line", "files", "limit"),
    [
        ("0::/a/step_0", {"a/step_0/memory.max": "max", "a/memory.max": 300 * MIB}, 300 * MIB),
        ("0::/a/b", {"a/b/memory.max": 200 * MIB, "a/memory.max": 300 * MIB}, 200 * MIB),
        ("4:memory:/a", {"memory/a/memory.limit_in_bytes": 100 * MIB}, 100 * MIB),
        ("4:memory:/a\n0::/", {"memory/a/memory.limit_in_bytes": (1 << 63) - 4096}, None),
        ("4:memory:/../..", {}, None),
        ("0::/a", {"a/memory.max": ""}, None),
        ("0::/a", {"a/memory.max": "1 2"}, None),
        ("", {}, None),
    ],
)
def test_the_memory_that_its_groups_leave_it(
    shell: list[str], tmp_path: Path, line: str, files: dict[str, object], limit: int | None
) -> None:
    """Those of both versions; without a limit it is that of the machine."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "groups").write_text(f"{line}\n")
    script = stats_script(f"""echo '{{"pid": {os.getpid()}}}'""")
    script = script.replace("/sys/fs/cgroup", str(tmp_path))
    done = run(shell, script.replace("/proc/$pid/cgroup", str(tmp_path / "groups")))
    assert (done.returncode, done.stderr) == (0, "")
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert int(done.stdout.splitlines()[0].split()[-1]) == (limit or whole)


def all_are(pids: set[int], states: set[str]) -> bool:
    lines = [Path(f"/proc/{pid}/stat").read_text() for pid in pids]
    return {line.rpartition(")")[2].split()[0] for line in lines} == states


def test_all_are_stopped_and_go_on(shell: list[str], inside: Inside) -> None:
    for name, expected in (("STOP", {"T"}), ("CONT", {"S"})):
        done = run(shell, signal_script(inside.state, name))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        wait_until(name, partial(all_are, inside.pids, expected))


def test_those_that_end_meanwhile_are_no_failure(shell: list[str], tmp_path: Path) -> None:
    script = "while :; do for i in 1 2 3 4 5; do /bin/true & done; wait; done"
    busy = Inside(tmp_path, script, own_namespace=False)
    try:
        for _ in range(10):
            done = run(shell, signal_script(busy.state, "CONT"))
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    finally:
        busy.close()


@pytest.mark.by_root
def test_one_that_may_not_be_signalled_is_a_failure() -> None:
    other = users.ordinary()
    state = f"echo '{json.dumps({'pid': os.getpid()})}'"
    # its namespace cannot be read either, and that would end the script before
    script = "readlink() { echo same; }\n" + signal_script(state, "0")
    done = run_program(["/bin/sh", "-c", script], user=other.uid, group=other.gid, extra_groups=[])
    assert done.returncode == 1
    assert done.stdout.startswith("not permitted for process ")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "state",
    [
        "false",
        "echo",
        "echo '{}'",
        """echo '{"pid": 0}'""",
        """echo '{"pid": "1"}'""",
        """echo '{"annotations": {"x": "\\"pid\\": 1"}}'""",
        "echo '\"pid\": 99999999999'",
        "exit 5",
    ],
)
@pytest.mark.parametrize(
    "script", [list_script("{}", "echo"), stats_script("{}"), signal_script("{}", "STOP")]
)
def test_a_container_that_is_not_known(shell: list[str], script: str, state: str) -> None:
    done = run(shell, script.replace("{}", state))
    said = "it has ended, or its runtime does not know it\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, said, "")


def test_a_site_without_a_command_for_it(shell: list[str]) -> None:
    for script in (list_script("", "ps"), stats_script(""), signal_script("", "STOP")):
        done = run(shell, script)
        assert (done.returncode, done.stderr) == (3, "")
        assert "RunTimeQuery" in done.stdout
        assert done.stdout.count("\n") == 1
