"""Scripts in their worker: loading, results, arguments, what they set and say."""

from pathlib import Path

import pytest
import trio

from scrun.settings.file.load import Lua
from tests.harness.lua import HEAD, OUT, VERSIONS, Bench, failing

IN = f"{HEAD}return slurm.SUCCESS end\n"
FINE = IN + OUT


# --- loading


@pytest.mark.parametrize("lua", VERSIONS, indirect=True)
@pytest.mark.parametrize(
    "script",
    [
        FINE,
        FINE + "return slurm.SUCCESS",
        FINE + "return slurm.success",
        FINE + "return 0",
        "#!/usr/bin/lua\n" + FINE,
        "\ufeff" + FINE,
        "\ufeff#!/usr/bin/lua\n" + FINE,
        "slurm_scrun_stage_in = os.time\nslurm_scrun_stage_out = os.time",
    ],
)
async def test_scripts_that_are_loaded(bench: Bench, script: str, lua: Lua) -> None:
    async with bench.loaded(script, lua) as loaded:
        assert loaded.path == f"{bench.directory}/scrun.lua"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (FINE + "function (", "scrun.lua:4: "),
        ("#!/usr/bin/lua\nx = = 1", "scrun.lua:2: unexpected symbol near '='"),
        (FINE + "error('broken')", "scrun.lua:4: broken"),
        (FINE + "local x = nil; x.y = 1", "scrun.lua:4: attempt to index"),
        (FINE + "require 'no.such.module'", "module 'no.such.module' not found"),
        (FINE + "os.exit(3)", "scrun.lua:4: os.exit(3) called: return slurm.SUCCESS or"),
        (IN, "function slurm_scrun_stage_out is missing"),
        (OUT, "function slurm_scrun_stage_in is missing"),
        ("slurm_scrun_stage_in = 1\n" + OUT, "function slurm_scrun_stage_in is missing"),
        ("", "functions slurm_scrun_stage_in and slurm_scrun_stage_out are missing"),
        (FINE + "return slurm.ERROR", "the script returned -1, not slurm.SUCCESS"),
        (FINE + "return slurm.FAILURE", "the script returned -1, not slurm.SUCCESS"),
        (FINE + "slurm.error('no %s', 'disk') return -1", "the script returned -1: no disk"),
        (FINE + "return true", "the script returned true, not slurm.SUCCESS"),
        (FINE + "return false", "the script returned false, not slurm.SUCCESS"),
        (FINE + "return {}", "the script returned a table, not slurm.SUCCESS"),
        (FINE + "slurm.remote_command('id')", "remote_command: there is no job yet"),
    ],
)
async def test_scripts_that_are_not(bench: Bench, script: str, reason: str, lua: Lua) -> None:
    assert reason in await bench.refuses(script, lua)


async def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write = lambda script: f"{tmp_path}/scrun.lua"  # type: ignore[method-assign]
    assert await bench.refuses("") == "No such file or directory"
    (tmp_path / "scrun.lua").mkdir()
    assert await bench.refuses("") == "is not a regular file"


async def test_a_working_directory_that_is_gone(bench: Bench) -> None:
    path = bench.write(FINE)
    bench.directory = bench.directory / "gone"
    bench.write = lambda script: path  # type: ignore[method-assign]
    with failing() as texts:
        async with bench.loaded(FINE):
            pass
    assert "cannot be run" in texts[0]
    assert "/gone: No such file" in texts[0]


async def test_commands_while_it_is_loaded(bench: Bench, lua: Lua) -> None:
    script = FINE + "local _, who = slurm.allocator_command('echo $FROM_CREATE') print(who)"
    async with bench.loaded(script, lua):
        pass
    assert "yes" in bench.said.texts()


# --- calls


async def test_arguments(bench: Bench, lua: Lua) -> None:
    body = """
    assert(type(job) == "number" and type(uid) == "number" and type(gid) == "number")
    print(string.format("%s %s %s %s %d %d %d", id, bundle, spool, file, job, uid, gid))
    for i, entry in ipairs(env) do print(i .. " " .. entry) end
    print(#env, env[0], os.getenv("SLURM_JOB_ID"), os.getenv("FROM_CREATE"), os.getenv("HOME"))
    """
    assert await bench.says(body, lua) == [
        "c1 /b /spool /b/config.json 7 1000 100",
        "1 SLURM_JOB_ID=7",
        "2 SCRUN_ANNOTATION_a=b=c",
        "2\tnil\t7\tyes\tnil",
    ]


async def test_texts_that_are_not_utf_8(bench: Bench, lua: Lua) -> None:
    body = "assert(env[1] == 'A=\\255\\n') slurm.set_bundle_path('/\\255')"
    assert await bench.stage_in(body, lua, job={"A": "\udcff\n"}) == ("/\udcff", "")


async def test_stage_out_is_called_in_the_same_way(bench: Bench) -> None:
    script = IN + "function slurm_scrun_stage_out(...) print(select('#', ...), ...) return 0 end"
    arguments = ("c1", "/n", "/o", "/nr", "/or", "/s", "/c", 7, 0, 0)
    async with bench.loaded(script) as loaded:
        await loaded.call("slurm_scrun_stage_out", arguments, ("/o", "/or"), {}, None)  # type: ignore[arg-type]
    assert bench.said.texts() == ["10\tc1\t/n\t/o\t/nr\t/or\t/s\t/c\t7\t0\t0"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("do return end", "slurm_scrun_stage_in returned nothing, not slurm.SUCCESS"),
        ("do return slurm.ERROR end", "slurm_scrun_stage_in returned -1, not slurm.SUCCESS"),
        ("do return 'yes' end", "slurm_scrun_stage_in returned 'yes', not slurm.SUCCESS"),
        ("do return true end", "slurm_scrun_stage_in returned true, not slurm.SUCCESS"),
        ("do return print end", "slurm_scrun_stage_in returned a function, not"),
        ("slurm.log_error('one') slurm.error('two') do return -1 end", "returned -1: two"),
        ("slurm.log('three', -1) do return end", "returned nothing: three"),
        ("local x; x()", "scrun.lua:2: attempt to call"),
        ("error('text')", "scrun.lua:2: text"),
        ("error('text', 0)", "text"),
        ("error({})", "scrun.lua:2: error: {}"),
        (
            "error({code = 7, message = 'no\\ndisk', [1] = {}, [true] = false})",
            'scrun.lua:2: error: {[1] = table, [true] = false, code = 7, message = "no disk"}',
        ),
        ("local t = {} for i = 1, 99 do t[i] = i end error(t)", "[8] = 8, ...}"),
        ("error(setmetatable({a = 1}, {__metatable = 'mine'}))", "error: {a = 1}"),
        ("error(setmetatable({a = 1}, {__metatable = true}))", "error: {a = 1}"),
        ("error(true)", "scrun.lua:2: error: true"),
        ("error(setmetatable({}, {__tostring = function() return 'mine' end}))", "error: mine"),
        ("error(setmetatable({}, {__tostring = function() error('worse') end}))", ""),
        ("error(setmetatable({}, {__tostring = function() return {} end}))", ""),
        ("os.exit()", "scrun.lua:2: os.exit(nil) called"),
        ("os.exit(true, true)", "scrun.lua:2: os.exit(true) called"),
        ("local c = coroutine.wrap(function() os.exit(0) end) c()", "os.exit(0) called"),
        ("local function f() return 1 + f() end f()", "stack overflow"),
        ("slurm.set_bundle_path({})", "scrun.lua:2: bad argument #1 to 'set_bundle_path' (string"),
        ("slurm.set_root_path()", "scrun.lua:2: bad argument #1 to 'set_root_path' (string"),
        ("slurm.set_root_path('a\\0b')", "scrun.lua:2: set_root_path: a path cannot contain"),
        ("slurm.set_root_path(('x'):rep(5000))", "set_root_path: a path cannot have more"),
        ("slurm.allocator_command({})", "scrun.lua:2: bad argument #1 to 'allocator_command'"),
        ("slurm.allocator_command('a\\0b')", "scrun.lua:2: allocator_command: a command cannot"),
        ("slurm.allocator_command(('x'):rep(131072))", "write it to a file"),
        ("slurm.log_info('%d', 'x')", "scrun.lua:2: bad argument #2"),
        ("slurm.log_info('%y', 1)", "scrun.lua:2: invalid "),
    ],
)
async def test_failures(bench: Bench, body: str, reason: str, lua: Lua) -> None:
    text = await bench.fails(body, lua)
    assert reason in text
    assert text.strip()
    assert "\n" not in text.strip()


async def test_an_error_of_nothing(bench: Bench, lua: Lua) -> None:
    assert await bench.fails("error(nil)", lua) in (
        "scrun.lua:2: error: nil",
        "<no error object>",
    )


async def test_where_an_error_came_from_is_in_the_log(bench: Bench, lua: Lua) -> None:
    await bench.fails("error('x')", lua)
    assert any("stack traceback" in text for text in bench.said.texts("debug"))


async def test_exit_is_an_error_like_any_other(bench: Bench, lua: Lua) -> None:
    body = """
    print(pcall(os.exit, 1))
    print(coroutine.resume(coroutine.create(function() os.exit(2) end)))
    """
    first, second = await bench.says(body, lua)
    assert first.startswith("false\t")
    assert "os.exit(1) called" in first
    assert second.startswith("false\tscrun.lua:4: os.exit(2) called")


# --- what it sets and says


async def test_paths(bench: Bench, lua: Lua) -> None:
    body = """
    print(slurm.set_bundle_path("/one"), select("#", slurm.set_bundle_path("/two")))
    print(slurm.set_root_path("/r"), slurm.set_root_path("/three"))
    print(pcall(slurm.set_root_path, nil))
    """
    assert await bench.stage_in(body, lua) == ("/two", "/three")
    said = bench.said.texts()
    assert said[:2] == ["/b\t1", "/b/rootfs\t/b/rootfs"]
    assert said[2].startswith("false\t")


async def test_logging(bench: Bench, lua: Lua) -> None:
    body = r"""
    slurm.log_error("e") slurm.error("e2") slurm.log_info("i") slurm.log_verbose("v")
    slurm.log_debug("d") slurm.log_debug2("d2") slurm.log_debug3("d3") slurm.log_debug4("d4")
    slurm.log("m") slurm.log("m0", 0) slurm.log("m1", 1) slurm.log("m4", 4) slurm.log("m9", 9)
    slurm.log("minus", -1) slurm.log(1, "first") slurm.log(2, 3)
    slurm.log_info("100% %d") slurm.log_info("%d%% %s", 7, "x") slurm.log_info(7) slurm.log_info()
    slurm.log_info("two\nlines") slurm.log_info(nil) slurm.log_info("a\0b\255")
    slurm.log_info(setmetatable({}, {__tostring = function() return "mine" end}))
    SLURM.log_info("alias")
    """
    await bench.stage_in(body, lua)
    assert [(level, text.removeprefix("scrun.lua: ")) for level, text in bench.said.lines] == [
        ("error", "e"), ("error", "e2"), ("info", "i"), ("verbose", "v"),
        ("debug", "d"), ("debug2", "d2"), ("debug3", "d3"), ("debug4", "d4"),
        ("info", "m"), ("info", "m0"), ("verbose", "m1"), ("debug3", "m4"), ("debug4", "m9"),
        ("error", "minus"), ("verbose", "first"), ("debug2", "2"),
        ("info", "100% %d"), ("info", "7% x"), ("info", "7"), ("info", ""),
        ("info", "two"), ("info", "lines"), ("info", "nil"), ("info", "a\\0b�"),
        ("info", "mine"), ("info", "alias"),
    ]  # fmt: skip


async def test_a_huge_message_is_shortened(bench: Bench, lua: Lua) -> None:
    (said,) = await bench.says("slurm.log_info(string.rep('x', 20000000))", lua)
    assert said.endswith("x... (20000000 bytes)")
    assert len(said) < 200_000
    assert len(await bench.fails("error(string.rep('x', 20000000))", lua)) < 200_000


async def test_what_it_prints_is_in_the_journal(bench: Bench, lua: Lua) -> None:
    body = "print('out', 1) io.write('no newline') io.stderr:write('err\\n')"
    assert sorted(await bench.says(body, lua)) == ["err", "no newline", "out\t1"]


async def test_files_that_it_left_open_are_written(bench: Bench, lua: Lua) -> None:
    path = bench.directory / "open"
    async with bench.loaded(
        f"{HEAD} kept = io.open('{path}', 'w') kept:write('all') return 0 end\n{OUT}", lua
    ) as script:
        await script.call("slurm_scrun_stage_in", (), ("", ""), {}, None)  # type: ignore[arg-type]
        assert path.read_text() == "all"


async def test_constants_and_times(bench: Bench, lua: Lua) -> None:
    body = """
    assert(slurm == SLURM and slurm.SUCCESS == 0 and slurm.success == 0)
    assert(slurm.ERROR == -1 and slurm.FAILURE == -1 and slurm.CLUSTER_NAME == "tux")
    assert(slurm.NO_VAL == 2^32 - 2 and slurm.NO_VAL8 == 254 and slurm.NO_VAL16 == 65534)
    assert(slurm.INFINITE == 2^32 - 1 and slurm.INFINITE8 == 255 and slurm.INFINITE16 == 65535)
    assert(slurm.NO_VAL64 == 2^64 - 2 and slurm.INFINITE64 == 2^64 - 1)
    assert(slurm.time_str2mins("1-2:3:4") == 1564 and slurm.time_str2mins("x") == -2)
    assert(slurm.time_str2mins(90) == 90 and slurm.time_str2mins() == -2)
    assert(string.format("%d", slurm.time_str2mins("0:29")) == "1")
    local function one(...) return select("#", ...) == 1 end
    assert(one(slurm.time_str2mins("5")) and one(slurm.time_str2mins("x")))
    assert(one(slurm.to_json({1})) and one(slurm.from_json("[1]")))
    assert(one(slurm.to_yaml({1})) and one(slurm.from_yaml("- 1")))
    for name in ("info verbose debug error debug2"):gmatch("%w+") do
        assert(select("#", slurm["log_" .. name]("x")) == 0)
    end
    assert(select("#", slurm.log("x", 0)) == 0)
    local list = {}
    table.insert(list, slurm.time_str2mins("5"))
    assert(list[1] == 5)
    assert(slurm.from_json(slurm.to_json({1})) [1] == 1 and require "json".null)
    """
    await bench.stage_in(body, lua)


async def test_loading_takes_not_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrun.supervisor.scripts.host._LOADING", 0.5)
    with trio.fail_after(5):
        assert await bench.refuses(FINE + "while true do end") == "was not loaded within 0.5 s"
