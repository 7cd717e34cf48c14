"""Limits: the supervisor's own, and those of the children of each caller."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.supervisor.children.processes import ChildEnv, child, output_of
from scrun.supervisor.contracts.create_request import read_command_line
from scrun.supervisor.core.limits import AT_START, soft_limits, words_for
from tests import CHECKOUT
from tests.harness import users
from tests.harness.program import run_program

RAISE = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from scrun.supervisor.core.limits import raise_limits
left = raise_limits()
for kind in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
    print(*resource.getrlimit(kind))
print(*left, sep=chr(10))
"""
INFINITY = str(resource.RLIM_INFINITY)


def raised(*limits: str, prefix: tuple[str, ...] = ()) -> list[str]:
    done = run_program(
        ["prlimit", *limits, "--", *prefix, sys.executable, "-c", RAISE, CHECKOUT],
        cwd="/",
        check=True,
    )
    return done.stdout.splitlines()


def test_a_user_gets_what_the_hard_limits_are() -> None:
    user = tuple(users.ordinary().prefix)
    cpu, fsize, nofile, *left = raised("--cpu=1:", "--fsize=4096:", "--nofile=99:", prefix=user)
    assert cpu == fsize == f"{INFINITY} {INFINITY}"
    assert nofile.split()[0] == "99"  # srun hands it on; see keep_descriptors_free
    assert left == [""]


def test_what_a_user_may_not_raise_is_told() -> None:
    user = tuple(users.ordinary().prefix)
    cpu, *_, left = raised("--cpu=30:60", prefix=user)
    assert cpu == "60 60"
    assert left == "processor time (ulimit -t, seconds): 60"


def test_who_may_raises_all() -> None:
    """That takes CAP_SYS_RESOURCE, which root in a container may lack (capabilities(7))."""
    status = Path("/proc/self/status").read_text()
    capabilities = int(next(line for line in status.splitlines() if "CapEff" in line)[8:], 16)
    may = bool(capabilities & 1 << 24)
    cpu, *_, left = raised("--cpu=30:60")
    assert cpu == (f"{INFINITY} {INFINITY}" if may else "60 60")
    assert (left == "") is may


@pytest.fixture
def caller() -> Iterator["subprocess.Popen[bytes]"]:
    """A process with limits of its own, as whoever calls `create` may have."""
    command = ["prlimit", "--core=7000:", "--stack=4194304:", "--", "sleep", "60"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()[:6]:
            assert process.poll() is None
        yield process
        process.kill()


async def test_children_have_the_limits_of_their_caller(
    caller: "subprocess.Popen[bytes]",
) -> None:
    fields = [b"%d" % caller.pid, b"22", b"/", b"2", b"create", b"c1", b"PATH=/usr/bin:/bin"]
    setting = read_command_line(fields, "create").child_env
    assert dict(setting.limits)["core"] == 7000
    assert sorted(words_for(setting.limits)) == ["--core=7000:", "--stack=4194304:"]
    said = await output_of(["sh", "-c", "ulimit -Ss; ulimit -Sn; ulimit -Sc"], setting)
    nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert said.split() == ["4096", str(nofile), str(7000 // 512)]


def test_without_a_difference_there_is_no_program_between() -> None:
    assert words_for(()) == words_for(AT_START) == words_for(soft_limits()) == []


def test_a_caller_that_is_gone_has_none() -> None:
    assert soft_limits(1 << 22) == ()


async def test_a_child_without_a_pidfd_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would end and reap it."""

    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(24, "Too many open files")

    started: list[subprocess.Popen[bytes]] = []
    whole = subprocess.Popen

    def popen(*arguments: object, **options: object) -> "subprocess.Popen[bytes]":
        started.append(whole(*arguments, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr("os.pidfd_open", refuse)
    monkeypatch.setattr("subprocess.Popen", popen)
    with pytest.raises(OSError, match="Too many open files"):
        async with child(["sleep", "100"], ChildEnv({"PATH": users.PATH})):
            pass
    [process] = started
    assert process.returncode == -9
