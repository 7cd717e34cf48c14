"""Children: started, signalled and reaped, whatever happens; nothing is left of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from scrun.supervisor.children.processes import Child, ChildEnv, child, output_of
from tests import CHECKOUT
from tests.harness import users
from tests.harness.processes import descendants, descriptors
from tests.harness.program import run_program

SETTING = ChildEnv({"PATH": users.PATH})
SLEEP = ["sleep", "60"]
# told by the descriptor 1, so that the test knows when it ignores TERM
STUBBORN = ["/bin/sh", "-c", "trap '' TERM; echo; exec sleep 60"]


def exists(pid: int) -> bool:
    """Whether a process is there, zombies included."""
    return Path(f"/proc/{pid}").exists()


async def first_word(fd: int) -> bytes:
    with trio.fail_after(10):
        await trio.lowlevel.wait_readable(fd)
    return os.read(fd, 100)


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", -9)]
)
async def test_status(script: str, status: int) -> None:
    async with child(["sh", "-c", script], SETTING) as running:
        assert await running.wait() == status
        assert running.ended
        assert await running.wait() == status  # as often as one likes
        running.signal(signal.SIGKILL)  # the pid may be somebody else's: nothing happens
    assert not exists(running.pid)


async def test_many_wait_for_one() -> None:
    statuses: list[int] = []

    async def wait(running: Child) -> None:
        statuses.append(await running.wait())

    async with child(["sh", "-c", "exit 3"], SETTING) as running, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(wait, running)
    assert statuses == [3] * 5


async def test_ends_when_it_is_left() -> None:
    async with child(SLEEP, SETTING) as running:
        assert exists(running.pid)
    assert running.ended
    assert await running.wait() == -signal.SIGTERM
    assert not exists(running.pid)


async def test_ends_when_the_block_fails() -> None:
    with pytest.raises(ZeroDivisionError):
        async with child(SLEEP, SETTING) as running:
            raise ZeroDivisionError
    assert not exists(running.pid)


async def test_ends_when_it_is_cancelled() -> None:
    with trio.move_on_after(0.05) as scope:
        async with child(SLEEP, SETTING) as running:
            await running.wait()
    assert scope.cancelled_caught
    assert not exists(running.pid)


@pytest.mark.parametrize("grace", [0.0, 0.3])
async def test_one_that_ignores_term_is_killed_after_the_grace(grace: float) -> None:
    readable, writable = os.pipe()
    with trio.move_on_after(30) as scope:
        async with child(STUBBORN, SETTING, stdout=writable, grace=grace) as running:
            assert await first_word(readable) == b"\n"
            scope.cancel()
            began = time.monotonic()
            await trio.sleep_forever()
    assert grace <= time.monotonic() - began < grace + 3
    assert await running.wait() == -signal.SIGKILL
    assert not exists(running.pid)
    os.close(readable)
    os.close(writable)


async def test_a_wait_that_was_given_up_is_no_matter() -> None:
    async with child(SLEEP, SETTING) as running:
        with trio.move_on_after(0.02):
            await running.wait()
        assert not running.ended
        running.signal(signal.SIGUSR1)
        assert await running.wait() == -signal.SIGUSR1


async def test_ended_by_a_signal_of_choice() -> None:
    async with child(SLEEP, SETTING) as running:
        assert await running.end(grace=5, by=signal.SIGINT) == -signal.SIGINT
    assert not exists(running.pid)


async def test_leads_a_session_of_its_own() -> None:
    async with child(SLEEP, SETTING) as running:
        assert os.getsid(running.pid) == running.pid


async def test_directory() -> None:
    assert await output_of(["pwd"], SETTING) == "/\n"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077, 0o777])
async def test_umask(umask: int) -> None:
    setting = ChildEnv({"PATH": users.PATH}, umask)
    assert int(await output_of(["sh", "-c", "umask"], setting), 8) == umask & 0o077


async def test_environment_is_exactly_that_of_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OURS", "not theirs")
    given = {"PATH": users.PATH, "A": "1 = 2\n", "LANG": "de_DE", "B": "", "C": "\udcff"}
    output = await output_of(["env", "-0"], ChildEnv(given))
    assert set(output.split("\0")) == {
        "A=1 = 2\n",
        "B=",
        "LANG=de_DE",
        "C=�",
        f"PATH={users.PATH}",
        "",
    }


async def test_prefix_stands_before_the_command() -> None:
    setting = ChildEnv({"PATH": users.PATH}, prefix=("env", "ADDED=yes"))
    assert "ADDED=yes" in await output_of(["env"], setting)


@pytest.mark.parametrize("path", [None, "/nonexistent"])
async def test_own_helpers_are_found_whatever_the_path_is(path: str | None) -> None:
    """A caller's PATH is for the caller's commands; setpriv is ours."""
    setting = ChildEnv({} if path is None else {"PATH": path})
    assert await output_of(["/bin/echo", "there"], setting) == "there\n"


async def test_program_that_is_not_there() -> None:
    before = descriptors(), descendants(os.getpid())
    with pytest.raises(FileNotFoundError, match="nonexistent"):
        async with child(["/nonexistent/program"], SETTING, dies_with_us=False):
            raise AssertionError("unreachable")
    # what sets the parent-death signal has been executed by then
    async with child(["/nonexistent/program"], SETTING) as running:
        assert await running.wait() == 127
    assert (descriptors(), descendants(os.getpid())) == before


async def test_passes_descriptors_under_their_numbers_and_no_others() -> None:
    readable, writable = os.pipe()
    other, another = os.pipe()
    os.set_inheritable(another, True)
    command = ["sh", "-c", f"echo here >/proc/self/fd/{writable}; ls /proc/self/fd"]
    listed, listing = os.pipe()
    async with child(command, SETTING, pass_fds=[writable], stdout=listing) as running:
        os.close(listing)
        assert await running.wait() == 0
    found = set(map(int, os.read(listed, 4096).split()))
    os.close(listed)
    assert os.read(readable, 100) == b"here\n"
    assert another not in found
    assert other not in found
    assert writable in found
    for fd in (readable, writable, other, another):
        os.close(fd)


async def test_standard_descriptors_are_null_unless_given() -> None:
    script = 'readlink /proc/$$/fd/0 /proc/$$/fd/2; read -r line; echo "status $?"'
    output = await output_of(["sh", "-c", script], SETTING)
    assert output == "/dev/null\n/dev/null\nstatus 1\n"


async def test_output_that_is_not_text() -> None:
    assert await output_of(["printf", r"a\377b"], SETTING) == "a�b"


async def test_output_larger_than_a_pipe() -> None:
    assert len(await output_of(["head", "-c", "300000", "/dev/zero"], SETTING)) == 300000


async def test_output_of_a_command_that_cannot_be_started_leaks_nothing() -> None:
    before = descriptors()
    with pytest.raises(ValueError, match="null byte"):
        await output_of(["a\0b"], SETTING)
    assert descriptors() == before


async def test_nothing_is_left_of_many() -> None:
    before = descriptors(), descendants(os.getpid())
    for number in range(50):
        async with child(["sh", "-c", f"exit {number}"], SETTING) as running:
            if number % 2:
                assert await running.wait() == number
    assert (descriptors(), descendants(os.getpid())) == before


async def test_nothing_is_left_of_many_at_once() -> None:
    before = descriptors(), descendants(os.getpid())

    async def one(number: int) -> None:
        with trio.move_on_after(number / 100):
            async with child(SLEEP if number % 2 else ["true"], SETTING) as running:
                await running.wait()

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one, number)
    assert (descriptors(), descendants(os.getpid())) == before


async def test_reaps_only_its_own() -> None:
    """A child of somebody else in this process stays to be waited for by them."""
    stranger = await trio.to_thread.run_sync(os.posix_spawn, "/bin/true", ["true"], {})
    async with child(["true"], SETTING) as running:
        await running.wait()
    assert await trio.to_thread.run_sync(os.waitpid, stranger, 0) == (stranger, 0)


LIMITS = """
import resource, sys, trio
sys.path.insert(0, sys.argv[1])
from scrun.supervisor.children.processes import ChildEnv, keep_descriptors_free, output_of

async def limits():
    setting = ChildEnv({"PATH": sys.argv[2], "A": "1"})
    print(await output_of(["sh", "-c", "ulimit -Sn; ulimit -Hn"], setting), end="")
    return await output_of(["env"], setting)

keep_descriptors_free(50)
first = trio.run(limits)
keep_descriptors_free(51)
print(*resource.getrlimit(resource.RLIMIT_NOFILE), sep="\\n")
second = trio.run(limits)
print(*sorted(set(second.split()) - set(first.split())))
"""


def test_children_have_the_descriptor_limit_that_we_were_given() -> None:
    python = [sys.executable, "-c", LIMITS, str(CHECKOUT), users.PATH]
    done = run_program(["prlimit", "--nofile=200:900", "--", *python])
    assert done.stderr == ""
    before, ours, after = ["200", "900"], ["900", "900"], ["200", "900"]
    added = done.stdout.split()
    assert [added.pop(0) for _ in range(6)] == [*before, *ours, *after]
    assert added == []  # whatever lowers the limit again leaves the environment alone


PARENT = """
import sys, trio
sys.path.insert(0, sys.argv[1])
from scrun.supervisor.children.processes import ChildEnv, child

SCRIPT = "sleep 60 & trap 'echo TERM; kill $!; exit' TERM; echo $$; wait"

async def main():
    setting = ChildEnv({"PATH": sys.argv[2]})
    dies = sys.argv[3] == "dies"
    async with child(["sh", "-c", SCRIPT], setting, stdout=1, dies_with_us=dies):
        # a worker thread that comes and goes must not be the one that the signal is bound to
        await trio.to_thread.run_sync(lambda: None)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.parametrize("dies", ["dies", "stays"])
def test_dies_with_us(dies: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHECKOUT, users.PATH, dies],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        assert parent.wait(10) == -signal.SIGKILL
        if dies == "stays":
            time.sleep(0.2)
            os.kill(pid, signal.SIGTERM)  # only now
        assert parent.stdout.readline() == b"TERM\n"
        assert parent.stdout.read() == b""  # nobody holds it any more


async def test_output_that_is_too_much() -> None:
    command = ["head", "--bytes=5000000", "/dev/zero"]
    assert len(await output_of(command, SETTING)) == 1 << 20
