"""The commands of a site's oci.conf, as the embedded engine calls them."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from scrun.core.errors import EngineError
from scrun.settings.file.load import RuntimeSettings
from scrun.settings.oci_conf.commands import node_runtime
from scrun.settings.oci_conf.parse import OciConf, parse_oci_conf
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.engines.local.commands import RuntimeContainer
from scrun.supervisor.engines.local.site_commands import OciConfCommands
from tests.harness.wait import wait_until

RUN = """\
RunTimeRun="runc run %n.%u.%U.%j.%s.%t -b %b"
RunTimeKill="runc kill -a %j"
RunTimeDelete="runc delete --force %j"
RunTimeEnvExclude="^SECRET="
"""
CREATE = """\
RunTimeCreate="runc create %j"
RunTimeStart="runc start %j"
RunTimeQuery="runc state %j"
RunTimeKill="runc kill %j KILL"
RunTimeDelete="runc delete %j"
"""
PROCESS = """\
IgnoreFileConfigJson=true
RunTimeRun="x exec %r %@"
RunTimeKill="kill -s SIGTERM %p"
RunTimeDelete="kill -s SIGKILL %p"
"""
ONE = RuntimeContainer("/r/one", "7", "/home/me", "/r/one/bundle")


def commands(text: str) -> OciConfCommands:
    conf = parse_oci_conf(text)
    return OciConfCommands(conf, "n1", "me", 9, node_runtime(conf, RuntimeSettings()))


def number(container: RuntimeContainer) -> str:
    *_, text = commands(RUN).run(container, "/log")
    return text.split()[3].split(".")[3]


def test_run() -> None:
    text = f"exec runc run n1.me.9.{number(ONE)}.0.0 -b /r/one/bundle"
    assert commands(RUN).run(ONE, "/log") == ["/bin/sh", "-c", text]


@pytest.mark.covers("oci.conf %j")
def test_the_number_begins_with_the_job_s_and_is_no_other_container_s() -> None:
    """oci.conf(5): %j is a number; root directories count their jobs each by itself."""
    others = [
        RuntimeContainer("/s/one", "7"),
        RuntimeContainer("/r/two", "7"),
        RuntimeContainer("/r/one", "8"),
    ]
    numbers = {number(container) for container in (ONE, *others)}
    assert len(numbers) == 4
    assert all(text.isdecimal() and len(text) == 11 for text in numbers)
    assert number(ONE) == number(RuntimeContainer("/r/one", "7"))  # for who only has the record


def test_create_and_start() -> None:
    python, *_, log, create, start, query = commands(CREATE).run(ONE, "/log")
    assert (python, log) == (sys.executable, "/log")
    assert (create, start, query) == tuple(
        f"runc {word} {number(ONE)}" for word in ("create", "start", "state")
    )


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (RUN, "runc kill NUMBER USR1"),
        (CREATE, "runc kill NUMBER USR1"),
        (PROCESS, "kill -s USR1 42"),
        ("IgnoreFileConfigJson=true\nRunTimeRun=x", "kill -s USR1 42"),
    ],
)
def test_kill(text: str, command: str) -> None:
    container = msgspec.structs.replace(ONE, pid=42)
    words = commands(text).kill(container, 10)
    assert words == ["/bin/sh", "-c", command.replace("NUMBER", number(ONE))]


def test_environment_of_the_commands() -> None:
    """oci.conf(5): RunTimeEnvExclude."""
    setting = ChildEnv({"SECRET": "x", "SECRETS": "y", "PATH": "/bin"}, 0o77, ("prefix",))
    assert commands(RUN).child_env(setting) == ChildEnv(
        {"SECRETS": "y", "PATH": "/bin"}, 0o77, ("prefix",)
    )


def removal(tmp_path: Path, text: str, pid: int = 0) -> tuple[int, str, Path]:
    """Run a removal; return its status, what it printed, and the step's directory."""
    container = RuntimeContainer(str(tmp_path), "7", pid=pid)
    made = tmp_path / f"oci-job{number(container)}-0"
    (made / "task-0").mkdir(parents=True, exist_ok=True)
    command = commands(text).delete(container)
    assert "\n" not in command[2]  # the keepalive reads lines
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stdout, made


@pytest.mark.covers("oci.conf RunTimeDelete")
def test_delete_removes_what_was_made(tmp_path: Path) -> None:
    """oci.conf(5): RunTimeDelete, DisableCleanup."""
    said = RUN.replace("runc delete --force %j", "echo gone; exit 3")
    status, printed, made = removal(tmp_path, said)
    assert (status, printed, made.exists()) == (3, "gone\n", False)
    _, _, made = removal(tmp_path, said + "DisableCleanup=yes\n")
    assert made.exists()


def test_delete_of_a_process_and_its_group(tmp_path: Path) -> None:
    """What the process has started ends with it, also if it cares for no TERM."""
    kept = tmp_path / "kept"
    program = f"trap '' TERM; (while :; do sleep 0.1; done) & echo $! >{kept}; wait"
    with subprocess.Popen(["sh", "-c", program], start_new_session=True) as sleeping:
        try:
            wait_until("it runs", lambda: kept.exists() and kept.read_text().strip() != "")
            removal(tmp_path, PROCESS.replace("SIGKILL", "SIGTERM"), sleeping.pid)
            assert sleeping.wait(20) == -9
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(sleeping.pid, signal.SIGKILL)
    started = Path(f"/proc/{kept.read_text().strip()}")
    wait_until("the other one of its group has ended", lambda: ended(started))


def ended(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_delete_of_no_process(tmp_path: Path) -> None:
    """A pid of 0 would be the group of whoever calls kill(1): this test."""
    status, _, _ = removal(tmp_path, PROCESS)
    assert status


def test_no_command_for_exec() -> None:
    with pytest.raises(EngineError, match="set `exec` in the section"):
        commands(PROCESS).exec(ONE)


def test_what_staging_is_told() -> None:
    assert not commands(RUN).link_rootfs
    assert commands(PROCESS).link_rootfs
    assert commands(RUN).working_directory(ONE) == f"/r/one/oci-job{number(ONE)}-0/task-0"
    assert OciConf().mode == "create"
