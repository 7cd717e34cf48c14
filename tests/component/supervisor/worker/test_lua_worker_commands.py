"""The commands of a script: their results, and that nothing of them is left."""

import contextlib
import os
import resource
import signal
from pathlib import Path

import pytest
import trio

from scrun.core.errors import EngineError
from scrun.settings.file.load import Lua
from tests.harness.lua import ARGUMENTS, HEAD, OUT, Bench, failing
from tests.harness.wait import wait_while

SHELL = "function sh(x) local s, o = slurm.allocator_command(x) return s .. ' ' .. o end\n"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("true", "0 "),
        ("exit 1", "1 "),
        ("exit 255", "255 "),
        ("kill -9 $$", "137 "),
        ("kill -TERM $$", "143 "),
        ("kill -SEGV $$", "139 "),
        ("no-such-command-at-all 2>/dev/null", "127 "),
        ("echo 1; echo 2 >&2; echo 3; exit 4", "4 1\\n2\\n3\\n"),
        ("cat; echo end", "0 end\\n"),
        ("echo $PATH | grep -c /bin", "0 1\\n"),
        ("printf '\\\\000\\\\377x'", "0 \\0\\255x"),
        ("umask", "0 0027\\n"),
        ("test $PWD -ef @HERE@ && echo here", "0 here\\n"),
        ("echo $FROM_CREATE $SLURM_JOB_ID $HOME", "0 yes 7\\n"),
        ("echo 'a b'  \"c\"", "0 a b c\\n"),
        ("", "0 "),
    ],
)
async def test_results(bench: Bench, command: str, expected: str) -> None:
    command = command.replace("@HERE@", str(bench.directory))
    body = f"local r = sh([[{command}]]) assert(r == '{expected}', string.format('%q', r))"
    await bench.stage_in(body.replace("\\\\", "\\"), before=SHELL)


async def test_types(bench: Bench, lua: Lua) -> None:
    body = """
    local status, output, more = slurm.allocator_command("printf 'a\\\\000\\\\377'; exit 3")
    assert(status == 3 and output == "a\\0\\255" and more == nil)
    assert(string.format("%d %u", status, status) == "3 3")
    """
    await bench.stage_in(body, lua)


async def test_popen_and_execute(bench: Bench, lua: Lua) -> None:
    body = """
    local pipe = io.popen("echo 1; echo two; echo bad >&2; exit 3")
    print(io.type(pipe), pipe:read("*l"), pipe:read("*a") == "two\\n", pipe:close())
    print(io.type(pipe))
    for line in io.popen("echo a; echo b", "r"):lines() do io.write(line, ";") end
    local fine = io.popen("true")
    print(fine:read("*a") == "", io.close(fine))
    print(select("#", io.popen("cat", "x")), io.popen("cat", "x"))
    local into = io.popen("cat >written; exit 4", "w")
    print(io.type(into), into:write("a", 1):write("b'$x") == into, into:close())
    print(io.type(into), io.open("written"):read("*a"))
    print(os.execute(), os.execute("true"))
    print(os.execute("echo said; exit 2"))
    local file = io.tmpfile()
    print(io.type(file), io.close(file), io.type(file), io.type(7))
    """
    said = await bench.says(body, lua)
    first = lua.version == "5.1"
    assert "bad" in said
    assert "said" in said
    said = [line for line in said if line not in ("bad", "said")]
    assert said == [
        "file\t1\ttrue\t" + ("true" if first else "nil\texit\t3"),
        "closed file",
        "a;b;true\t" + ("true" if first else "true\texit\t0"),
        "2\tnil\tio.popen: x: invalid mode",
        "file\ttrue\t" + ("true" if first else "nil\texit\t4"),
        "closed file\ta1b'$x",
        "1\t0" if first else "true\ttrue\texit\t0",
        "512" if first else "nil\texit\t2",
        "file\ttrue\tclosed file\tnil",
    ]


# --- output


async def test_much_output(bench: Bench) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    settings = Lua(output_limit=128)
    body = """
    local status, output = slurm.allocator_command("head -c 104857600 /dev/zero")
    assert(#output == 104857600)
    """
    await bench.stage_in(body, settings)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 20 * 1024  # KiB: it does not pass through here


async def test_too_much_output(bench: Bench, lua: Lua) -> None:
    limited = Lua(version=lua.version, output_limit=1)
    body = """
    local done, reason = pcall(slurm.allocator_command, "yes")
    assert(not done and type(reason) == "string")
    print(reason)
    print(slurm.allocator_command("printf on"))
    print(#select(2, slurm.allocator_command("head -c 1048576 /dev/zero")))
    """
    first, *rest = await bench.says(body, limited)
    assert first.startswith("allocator_command: more than 1 MiB of output (output_limit in")
    assert rest == ["0\ton", "1048576"]


async def test_output_that_does_not_fit_the_scripts_memory(bench: Bench, lua: Lua) -> None:
    limited = Lua(version=lua.version, memory=16)
    body = "local s, o = slurm.allocator_command('head -c 50000000 /dev/zero') local p = o .. 'x'"
    assert "not enough memory" in await bench.fails(body, limited)


# --- what a command leaves behind


def processes(mark: str) -> list[str]:
    """The pids of those that have a mark in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                found.append(entry)
    return found


def commands(mark: str) -> list[bytes]:
    found = []
    for pid in processes(mark):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def members(group: int) -> list[str]:
    """The pids of a process group; without those that are dead and wait for init."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            state, _, number = (
                Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:3]
            )
            if int(number) == group and state != "Z":
                found.append(entry)
    return found


async def content(path: Path) -> str:
    """Wait for a command to write into a file."""
    file = trio.Path(path)
    with trio.fail_after(10):
        while not (await file.exists() and await file.read_text()):  # noqa: ASYNC110 (no event)
            await trio.sleep(0.01)
    return await file.read_text()


@pytest.fixture
def mark(bench: Bench) -> str:
    """What is in the environment of all processes of the script."""
    name = f"MARK={bench.directory}"
    bench.setting.environment["MARK"] = str(bench.directory)  # type: ignore[index]
    return name


async def test_background_processes_are_gone(bench: Bench, mark: str) -> None:
    body = """
    local command = "sleep 1000 & (trap '' TERM; sleep 1000) & echo x"
    local status, output = slurm.allocator_command(command)
    assert(status == 0 and output == "x\\n")
    os.execute("echo > ended") io.popen("until test -e seen; do sleep 0.01; done"):close()
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.stage_in, body)
        await content(bench.directory / "ended")
        names = commands(mark)
        (bench.directory / "seen").touch()
    assert not [name for name in names if b"1000" in name]


@pytest.mark.parametrize("what", ["sleep 1000", "while :; do echo x; sleep 0.01; done"])
@pytest.mark.parametrize("function", ["slurm.allocator_command", "io.popen", "os.execute"])
async def test_a_daemon_that_keeps_the_pipe(
    bench: Bench, mark: str, what: str, function: str
) -> None:
    script = f"setsid -f sh -c '{what}'; echo begun"
    start = trio.current_time()
    try:
        async with bench.loaded(f'{HEAD}{function}("{script}") return 0 end\n{OUT}') as loaded:
            start = trio.current_time()
            with trio.fail_after(10):
                await loaded.call("slurm_scrun_stage_in", ARGUMENTS, ("", ""), {}, None)  # type: ignore[arg-type]
            assert trio.current_time() - start < 1.5
    finally:
        for pid in processes(mark):
            with contextlib.suppress(ProcessLookupError):  # one that writes ends by itself
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000",
        "sleep 1000 & sleep 1000; wait",
        "trap '' TERM; sleep 1000",
        "trap '' TERM INT HUP; while :; do :; done",
    ],
)
@pytest.mark.parametrize("function", ["slurm.allocator_command", "io.popen", "os.execute"])
async def test_cancelling_ends_the_whole_group(
    bench: Bench, mark: str, command: str, function: str
) -> None:
    told = bench.directory / "told"
    body = f'{function}("echo $$ > {told}; {command}")'
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.stage_in, body)
        pid = int(await content(told))
        start = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - start < 1
    wait_while("processes of the script", lambda: processes(mark), 0.5)
    wait_while("processes of the command", lambda: members(pid), 0.5)


async def test_the_worker_is_killed_meanwhile(bench: Bench, mark: str) -> None:
    body = "slurm.allocator_command('kill -9 $(cat pid); sleep 1000')"
    with trio.fail_after(5), failing() as texts:
        async with bench.loaded(f"{HEAD}{body} return 0 end\n{OUT}") as loaded:
            (bench.directory / "pid").write_text(str(loaded._worker.pid))
            await loaded.call("slurm_scrun_stage_in", ARGUMENTS, ("", ""), {}, None)  # type: ignore[arg-type]
    assert "its process was killed by signal 9 (SIGKILL)" in texts[0]
    wait_while("processes of the script", lambda: processes(mark), 0.5)


# --- remote_command


async def test_remote_commands(bench: Bench, lua: Lua) -> None:
    asked: list[str] = []

    async def remote(script: str, output: int) -> int:
        asked.append(script)
        os.write(output, b"\0there")
        return 137

    body = """
    local status, output = slurm.remote_command("rm -r x")
    assert(status == 137 and output == "\\0there")
    """
    await bench.stage_in(body, lua, remote=remote)
    assert asked == ["rm -r x"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineError("Slurm does not answer"), "remote_command: Slurm does not answer"),
        (FileNotFoundError(2, "No such file or directory", "/srun"), "/srun: No such file"),
    ],
)
async def test_remote_commands_that_cannot_be_run(
    bench: Bench, lua: Lua, error: Exception, reason: str
) -> None:
    async def remote(script: str, output: int) -> int:
        raise error

    body = """
    print(pcall(slurm.remote_command, "id"))
    print(slurm.allocator_command("printf on"))
    slurm.remote_command("id")
    """
    text = await bench.fails(body, lua, remote=remote)
    assert "scrun.lua:5: " in text
    assert reason in text
    first, second = (text for text in bench.said.texts("info"))
    assert first.startswith("false\t")
    assert reason in first
    assert second == "0\ton"


async def test_a_remote_command_is_cancelled_with_the_script(bench: Bench) -> None:
    begun = trio.Event()
    ended: list[bool] = []

    async def remote(script: str, output: int) -> int:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)
        raise AssertionError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.stage_in, "slurm.remote_command('x')", None, remote)
        await begun.wait()
        nursery.cancel_scope.cancel()
    assert ended


async def test_no_descriptor_is_left(bench: Bench) -> None:
    before = len(os.listdir("/proc/self/fd"))
    await bench.stage_in("for i = 1, 50 do slurm.allocator_command('echo x') end io.popen('true')")
    assert len(os.listdir("/proc/self/fd")) == before
