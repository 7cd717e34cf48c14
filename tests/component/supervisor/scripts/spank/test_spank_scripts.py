"""A site's scripts in their worker: loading, the handle, options, failures. spank-lua(8)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from scrun.core.errors import SpankError, leaves
from scrun.settings.file.load import Lua
from scrun.supervisor.scripts.spank.items import ContextName, JobFacts
from tests import CHECKOUT
from tests.harness.lua import VERSIONS, WITH_POSIX
from tests.harness.spank import CALLBACK, FACTS, SpankBench

MANUAL = (CHECKOUT / "tests" / "data" / "spank-lua.8.lua").read_text()


@pytest.fixture
def bench(tmp_path: Path) -> SpankBench:
    return SpankBench(tmp_path)


@contextmanager
def failing() -> Iterator[list[str]]:
    """Expect one SpankError, in whatever groups; its text is in the list afterwards."""
    texts: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        yield texts
    [error] = leaves(caught.value)
    assert isinstance(error, SpankError)
    texts.append(str(error))


async def fails(bench: SpankBench, *texts: str, **how: bool) -> str:
    """Load scripts and call CALLBACK; return why that fails."""
    scripts = [bench.script(text, name=f"s{n}", **how) for n, text in enumerate(texts)]
    with failing() as told:
        async with bench.opened(*scripts) as (made, context):
            await made.call(context, CALLBACK)
    return told[0].replace(f"{bench.directory}/", "")


# --- the manual's example


@pytest.mark.covers("spank-lua EXAMPLE: no-memory-overcommit")
@pytest.mark.parametrize("lua", VERSIONS, indirect=True)
async def test_the_manuals_example(bench: SpankBench, lua: Lua) -> None:
    """EXAMPLE: as it is printed, with an option that has no `val`."""
    async with bench.opened(bench.script(MANUAL), lua=lua) as (scripts, context):
        [(_, option)] = context.options.values()
        assert (option.name, option.takes, option.val) == ("no-memory-overcommit", 0, 0)
        await scripts.call_back(context, "no-memory-overcommit", None)
        await scripts.call(context, "slurm_spank_init_post_opt")
    assert bench.variables.control == {"NO_OVERCOMMIT": "1"}
    assert bench.said.lines == [("info", "a.lua: slurm_spank_init_post_opt")]


@pytest.mark.covers("spank-lua EXAMPLE: no-memory-overcommit")
async def test_the_manuals_example_without_its_option(bench: SpankBench) -> None:
    async with bench.opened(bench.script(MANUAL)) as (scripts, context):
        await scripts.call(context, "slurm_spank_init_post_opt")
    assert bench.variables.control == {}
    assert bench.said.lines == []


# --- the handle


@pytest.mark.covers("spank-lua SCRIPT OPTIONS: spank.args")
@pytest.mark.covers("spank-lua a function gets the handle as its only argument")
@pytest.mark.covers("spank-lua args, slurm_version")
@pytest.mark.parametrize("lua", VERSIONS, indirect=True)
async def test_members_of_the_handle(bench: SpankBench, lua: Lua) -> None:
    """SPANK-LUA HANDLE: context, args, slurm_version."""
    body = "say(spank.context, #spank.args, spank.args[1], spank.args[2], spank.slurm_version)"
    assert await bench.says(body, lua=lua) == ["allocator 2 x=1 y 24.11.5"]


@pytest.mark.covers("spank-lua context")
@pytest.mark.parametrize("context", ["local", "allocator", "remote", "slurmd", "job_script"])
async def test_contexts(bench: SpankBench, context: ContextName) -> None:
    assert await bench.says("say(spank.context)", context=context) == [context]


@pytest.mark.covers("spank-lua get_item: all items of spank.h")
async def test_items_with_one_value(bench: SpankBench, lua: Lua) -> None:
    """get_item: numbers and texts."""
    body = """
    for _, name in ipairs({"S_JOB_UID", "S_JOB_GID", "S_JOB_ID", "S_JOB_STEPID", "S_JOB_NNODES",
        "S_JOB_TOTAL_TASK_COUNT", "S_SLURM_VERSION", "S_SLURM_VERSION_MAJOR"}) do
        say(name, string.format("%s", spank:get_item(name)))
    end"""
    assert await bench.says(body, lua=lua) == [
        "S_JOB_UID 1000", "S_JOB_GID 100", "S_JOB_ID 7", "S_JOB_STEPID 0", "S_JOB_NNODES 2",
        "S_JOB_TOTAL_TASK_COUNT 3", "S_SLURM_VERSION 24.11.5", "S_SLURM_VERSION_MAJOR 24",
    ]  # fmt: skip


@pytest.mark.covers("spank-lua items that return multiple values are tables")
async def test_items_with_many_values_are_tables(bench: SpankBench, lua: Lua) -> None:
    """get_item: "For items that return multiple values, spank-lua will return a table"."""
    body = """
    local argv, env = spank:get_item("S_JOB_ARGV"), spank:get_item("S_JOB_ENV")
    say(#argv, argv[1], argv[2], env.A, env.NONE)
    env.A = "not the job's"
    say(spank:get_item("S_JOB_ENV").A)
    spank:setenv("B", "2")
    say(spank:get_item("S_JOB_ENV").B)"""
    assert await bench.says(body, lua=lua) == ["2 a b c 1 nil", "1", "2"]
    remote = await bench.says(
        "say(table.concat(spank:get_item('S_JOB_SUPPLEMENTARY_GIDS'), ','))",
        context="remote", lua=lua,
    )  # fmt: skip
    assert remote == ["4,5"]


@pytest.mark.covers("spank-lua get_item: all items of spank.h")
async def test_items_that_need_an_id(bench: SpankBench, lua: Lua) -> None:
    facts = JobFacts("24.11.5", pid=99, status=0)
    body = """
    local name = "S_JOB_LOCAL_TO_GLOBAL_ID"
    say(spank:get_item(name, 0), spank:get_item(name, 1))
    say(spank:get_item("S_JOB_PID_TO_LOCAL_ID", 99), spank:get_item("S_JOB_PID_TO_LOCAL_ID", 98))
    say(pcall(spank.get_item, spank, "S_JOB_PID_TO_LOCAL_ID"))
    say(spank:get_item(name, "0"))"""
    said = await bench.says(
        body, callback="slurm_spank_task_exit", context="remote", lua=lua, facts=facts
    )
    assert said[:2] == ["0 nil Id/PID does not exist on this node"] * 2
    assert said[2].endswith("bad argument #2 to 'get_item' (number expected, got nil)")
    assert said[3] == "0"


@pytest.mark.covers("spank-lua S_TASK_EXIT_STATUS: status, exitcode, termsig, core")
@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, "0 0 nil nil"), (768, "768 3 nil nil"), (9, "9 nil 9 nil"), (139, "139 nil 11 1")],
)
async def test_a_task_s_exit_status(
    bench: SpankBench, lua: Lua, status: int, expected: str
) -> None:
    """get_item: S_TASK_EXIT_STATUS has three more values."""
    facts = JobFacts("24.11.5", status=status)
    body = """
    local status, code, signal, core = spank:get_item("S_TASK_EXIT_STATUS")
    local function whole(n) return n and string.format("%d", n) end
    say(whole(status), whole(code), whole(signal), whole(core))"""
    said = await bench.says(
        body, callback="slurm_spank_task_exit", context="remote", lua=lua, facts=facts
    )
    assert said == [expected]


@pytest.mark.covers("spank-lua get_item: all items of spank.h")
async def test_what_cannot_be_had_is_nil_and_a_message(bench: SpankBench, lua: Lua) -> None:
    assert await bench.says("say(spank:get_item('S_TASK_ID'))", lua=lua) == [
        "nil Valid only in remote context"
    ]
    said = await bench.says("say(pcall(spank.get_item, spank, 'S_NO'))", lua=lua)
    assert said == ["false Invalid spank item S_NO"]
    said = await bench.says("say(pcall(spank.get_item, 'S_JOB_ID'))", lua=lua)
    assert said == ["false call it with a colon: spank:get_item(...)"]


@pytest.mark.covers("spank-lua getenv, setenv, unsetenv")
async def test_the_job_s_environment(bench: SpankBench, lua: Lua) -> None:
    """getenv, setenv, unsetenv."""
    body = """
    say(spank:getenv("A"), spank:getenv("NONE"))
    say(spank:setenv("A", "2"))
    say(spank:setenv("A", "2", false), spank:setenv("A", "2", 0))
    say(spank:setenv("A", 3, true), spank:getenv("A"), os.getenv("A"))
    say(spank:setenv("A", "4", 1), spank:getenv("A"))
    say(spank:setenv("N", "5"), spank:getenv("N"))
    say(spank:unsetenv("N"), spank:getenv("N"), os.getenv("N"))
    say(spank:unsetenv("N"), spank:setenv("", "x"), spank:setenv("a=b", "x"))
    say(pcall(spank.setenv, spank, "A", {}))"""
    assert await bench.says(body, lua=lua) == [
        "1 nil No such environment variable",
        "nil Environment variable exists",
        "nil nil Environment variable exists",
        "true 3 3",
        "true 4",
        "true 5",
        "true nil nil",
        "true nil nil Bad argument",
        "false bad argument #2 to 'setenv' (string expected, got table)",
    ]
    assert bench.variables.job["A"] == "4"
    assert bench.variables.changed == {"A": "4", "N": None}


@pytest.mark.covers("spank-lua getenv, setenv, unsetenv")
async def test_what_overwrites(bench: SpankBench, lua: Lua) -> None:
    """A boolean in the manual, a number in the source."""
    body = """
    for _, value in ipairs({ false, 0, "0", 0.5, "x", {}, true, 1, "1", -1 }) do
        say(spank:setenv("A", "2", value) == true)
    end"""
    assert await bench.says(body, lua=lua) == ["false"] * 6 + ["true"] * 4


async def test_long_values(bench: SpankBench) -> None:
    body = "spank:setenv('L', ('x'):rep(100000)) say(#spank:getenv('L'))"
    assert await bench.says(body) == ["100000"]


async def test_a_missing_function_is_success(bench: SpankBench) -> None:
    async with bench.opened(bench.script("x = 1")) as (made, context):
        await made.call(context, CALLBACK)
    assert bench.said.lines == []


async def test_a_function_that_is_defined_later(bench: SpankBench) -> None:
    """What a script has is asked when it is loaded: without any function there is no worker."""
    text = f"function slurm_spank_init() {CALLBACK} = function() SPANK.log_info('late') end end"
    async with bench.opened(bench.script(text)) as (made, context):
        await made.call(context, "slurm_spank_init")
        await made.call(context, CALLBACK)
    assert bench.said.lines == []


@pytest.mark.covers("spank-lua job_control_setenv, job_control_getenv, job_control_unsetenv")
async def test_the_job_control_environment(bench: SpankBench, lua: Lua) -> None:
    """job_control_setenv, job_control_getenv, job_control_unsetenv."""
    body = """
    say(spank:job_control_getenv("A"))
    say(spank:job_control_setenv("A", "x", 1), spank:job_control_getenv("A"))
    say(spank:job_control_setenv("A", "y"))
    say(spank:job_control_setenv("B", 1), spank:job_control_unsetenv("A"))"""
    assert await bench.says(body, lua=lua) == [
        "nil No such environment variable", "true x", "nil Environment variable exists",
        "true true",
    ]  # fmt: skip
    assert bench.variables.control == {"B": "1"}
    assert "B" not in bench.variables.job
    said = await bench.says("say(spank:job_control_getenv('B'))", context="remote", lua=lua)
    assert said == ["nil Valid only in local or allocator context"]


async def test_bytes_of_any_kind(bench: SpankBench, lua: Lua) -> None:
    bench.variables.job["RAW"] = "\udcff=\n"
    body = """say(spank:getenv("RAW") == "\\255=\\n") spank:setenv("OUT", "\\254\\n=")"""
    assert await bench.says(body, lua=lua) == ["true"]
    assert os.fsencode(bench.variables.job["OUT"]) == b"\xfe\n="


# --- SPANK


@pytest.mark.covers("spank-lua SPANK.log_*", "spank-lua SPANK.SUCCESS, SPANK.FAILURE")
async def test_log_functions(bench: SpankBench, lua: Lua) -> None:
    """SPANK.log_*: a format and its arguments; SPANK.SUCCESS and SPANK.FAILURE."""
    body = """
    local failure = SPANK.log_error("%s: %d", "bad", 1)
    SPANK.log_info("100%") SPANK.log_verbose("%5s|", "x") SPANK.log_debug("d")
    say(failure, SPANK.SUCCESS, SPANK.FAILURE, slurm)"""
    await bench.says(body, lua=lua)
    assert bench.said.lines == [
        ("error", "a.lua: bad: 1"), ("info", "a.lua: 100%"), ("verbose", "a.lua:     x|"),
        ("debug", "a.lua: d"), ("info", "a.lua: nil 0 -1 nil"),
    ]  # fmt: skip


# --- options


@pytest.mark.covers("spank-lua register_option: only from slurm_spank_init")
@pytest.mark.covers("spank-lua SPANK OPTIONS: members of an option")
@pytest.mark.covers("spank-lua spank_options")
async def test_options_by_both_ways(bench: SpankBench, lua: Lua) -> None:
    """SPANK OPTIONS: register_option, and the table spank_options."""
    text = """
    spank_options = {
        { name = "test", usage = "A test option for spank-lua", val = 1, cb = "back" },
    }
    function back(val, optarg, remote)
        SPANK.log_info("%d %s %s", val, tostring(optarg), tostring(remote))
    end
    function slurm_spank_init(spank)
        local ok, why = spank:register_option({ name = "more", usage = "m", has_arg = true,
            arginfo = "WHAT", val = 7, cb = "back" })
        SPANK.log_info("%s %s", tostring(ok), tostring(why))
    end
    function slurm_spank_init_post_opt(spank)
        SPANK.log_info("%s %s", tostring(spank:register_option({ name = "x", usage = "y" })))
    end"""
    async with bench.opened(bench.script(text, fails=False), lua=lua) as (scripts, context):
        assert list(context.options) == ["test"]
        await scripts.call(context, "slurm_spank_init")
        assert [option.takes for _, option in context.options.values()] == [0, 1]
        await scripts.call_back(context, "test", None)
        await scripts.call_back(context, "more", "a b")
        await scripts.call(context, "slurm_spank_init_post_opt")
    said = [text for _, text in bench.said.lines]
    assert said[:3] == ["a.lua: true nil", "a.lua: 1 nil false", "a.lua: 7 a b false"]
    assert list(context.options) == []


@pytest.mark.covers("spank-lua register_option: only from slurm_spank_init")
async def test_only_init_may_register(bench: SpankBench, lua: Lua) -> None:
    body = "say(spank:register_option({ name = 'x', usage = 'y' }))"
    assert await bench.says(body, lua=lua) == ["nil Bad argument"]
    assert await bench.says(body, lua=lua, callback="slurm_spank_init") == ["true"]
    assert await bench.says(body, callback="slurm_spank_init", context="slurmd") == [
        "nil Bad argument"
    ]


@pytest.mark.covers("spank-lua the callback: cb(val, optarg, remote)")
async def test_the_remote_callback_is_told(bench: SpankBench, lua: Lua) -> None:
    text = (
        "function cb(v, a, remote) SPANK.log_info('%s', tostring(remote)) end "
        "spank_options = {{ name = 'x', usage = 'y', cb = 'cb' }}"
    )
    async with bench.opened(bench.script(text), context="remote", lua=lua) as (scripts, context):
        await scripts.call_back(context, "x", None)
    assert bench.said.texts() == ["a.lua: true"]


@pytest.mark.covers("spank-lua getopt")
async def test_getopt(bench: SpankBench, lua: Lua) -> None:
    """getopt: what was given, true without an argument; only when options are known."""
    body = """
    say(spank:getopt({ name = "flag", usage = "" }), spank:getopt({ name = "arg", usage = "" }))
    say(spank:getopt({ name = "other", usage = "" }))"""
    given: dict[str, str | bool] = {"flag": True, "arg": "v"}
    assert await bench.says(body, lua=lua, given=given) == ["true v", "nil Option unused"]
    said = await bench.says(body, callback="slurm_spank_init", given=given)
    assert said[1] == "nil Item not available from this callback"


@pytest.mark.covers("spank-lua SPANK OPTIONS: members of an option")
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("'x'", "spank option: table expected, got string"),
        ("{ usage = 'y' }", 'Required field "name" missing from spank option table'),
        ("{ name = 'x' }", 'Required field "usage" missing from spank option table'),
        ("{ name = 'x y', usage = 'y' }", "x y: not a valid name of an option"),
        ("{ name = ('x'):rep(76), usage = 'y' }", "not a valid name of an option"),
        ("{ name = 'x', usage = 'y', has_arg = 3 }", "has_arg: 0, 1 or 2 expected"),
        ("{ name = {}, usage = 'y' }", 'Required field "name" missing from spank option table'),
        ("first = { name = 'x' }", 'Required field "usage" missing from spank option table'),
        ("{ name = 'x', usage = 'y', cb = 'no' }", "Unable to find spank option cb function no"),
    ],
)
async def test_options_that_are_none(bench: SpankBench, option: str, reason: str) -> None:
    """spank_options: what is required of them."""
    assert reason in await fails(bench, f"spank_options = {{ {option} }}")


@pytest.mark.covers("spank-lua the callback: cb(val, optarg, remote)")
async def test_a_callback_that_refuses(bench: SpankBench) -> None:
    text = (
        "function cb() SPANK.log_error('no such thing') return -1 end "
        "spank_options = {{ name = 'x', usage = 'y', has_arg = 1, cb = 'cb' }}"
    )
    with failing() as told:
        async with bench.opened(bench.script(text, required=False)) as (scripts, context):
            await scripts.call_back(context, "x", "v")
    assert told[0].endswith("a.lua: cb of --x=v returned -1: no such thing")


@pytest.mark.covers("spank-lua SPANK OPTIONS: members of an option")
async def test_what_members_of_an_option_may_be(bench: SpankBench, lua: Lua) -> None:
    """What is not a number is 0, a number is a text, and the keys may be names."""
    text = """
    spank_options = { { name = "a", usage = 5, cb = "back", val = "vm", has_arg = "1" },
        named = { name = "b", usage = "y", cb = "back", val = "7.9", has_arg = {} } }
    function back(val, optarg) SPANK.log_info("%s %s", tostring(val), tostring(optarg)) end"""
    async with bench.opened(bench.script(text), lua=lua) as (scripts, context):
        found = {name: option.takes for name, (_, option) in context.options.items()}
        assert found == {"a": 1, "b": 0}
        assert context.options["a"][1].usage == "5"
        await scripts.call_back(context, "a", "x")
        await scripts.call_back(context, "b", None)
    assert bench.said.texts() == ["a.lua: 0 x", "a.lua: 7 nil"]


@pytest.mark.covers("spank-lua getopt")
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("{ name = 'x' }", 'Required field "usage" missing'),
        ("{ usage = 'x' }", 'Required field "name" missing'),
        ("{ name = 'x', usage = 'y', cb = 'no' }", "Unable to find spank option cb function no"),
        ("5", "table expected"),
    ],
)
async def test_getopt_of_what_is_no_option(bench: SpankBench, option: str, reason: str) -> None:
    [said] = await bench.says(f"say(pcall(spank.getopt, spank, {option}))")
    assert said.startswith("false")
    assert reason in said


@pytest.mark.covers("spank-lua the callback: cb(val, optarg, remote)")
@pytest.mark.parametrize(
    ("result", "shown"), [("1", "1"), ("-2", "-2"), ("'3'", "3"), ("0.5", ""), ("{}", "")]
)
async def test_an_option_s_function_accepts_by_0(
    bench: SpankBench, result: str, shown: str
) -> None:
    option = "{ name = 'x', usage = 'y', cb = 'cb' }"
    text = f"function cb() return {result} end spank_options = {{ {option} }}"
    script = bench.script(text)
    if shown:
        with failing() as told:
            async with bench.opened(script) as (scripts, context):
                await scripts.call_back(context, "x", None)
        assert told[0].endswith(f"a.lua: cb of --x returned {shown}")
    else:
        async with bench.opened(script) as (scripts, context):
            await scripts.call_back(context, "x", None)


# --- failures


@pytest.mark.covers("spank-lua -1 is failure, anything else success, no value too")
@pytest.mark.parametrize("result", ["-2", "'-1'", "-1.5"])
async def test_what_is_below_0_is_failure(bench: SpankBench, result: str) -> None:
    """The plugin asks for that; its manual says -1."""
    number = {"'-1'": "-1", "-1.5": "-1"}.get(result, result)
    assert f"returned {number} (required" in await fails(
        bench, f"function {CALLBACK}() return {result} end"
    )


@pytest.mark.covers("spank-lua -1 is failure, anything else success, no value too")
@pytest.mark.parametrize("result", ["-0.5", "SPANK.log_error('no')", "SPANK._log_msg(0, 'x')"])
async def test_what_only_looks_like_failure(bench: SpankBench, result: str) -> None:
    script = bench.script(f"function {CALLBACK}() return {result} end")
    async with bench.opened(script) as (made, context):
        await made.call(context, CALLBACK)


async def test_the_function_below_the_log_functions(bench: SpankBench) -> None:
    body = "return SPANK._log_msg(-1, '100%')"
    assert "returned -1: 100%" in await fails(bench, f"function {CALLBACK}() {body} end")
    body = "for n = 0, 3 do SPANK._log_msg(n, n) end"
    async with bench.opened(bench.script(f"function {CALLBACK}() {body} end")) as (made, context):
        bench.said.lines.clear()
        await made.call(context, CALLBACK)
    levels = [(level, text.removeprefix("a.lua: ")) for level, text in bench.said.lines]
    assert levels == [("info", "0"), ("verbose", "1"), ("debug", "2")]


async def test_a_callback_that_is_no_function(bench: SpankBench) -> None:
    assert "attempt to call a number" in await fails(bench, f"{CALLBACK} = 5")


@pytest.mark.covers("spank-lua -1 is failure, anything else success, no value too")
async def test_minus_one_of_a_required_line(bench: SpankBench) -> None:
    """CONFIGURATION: required. The line names script, callback and reason."""
    text = f"function {CALLBACK}() SPANK.log_error('because') return SPANK.FAILURE end"
    assert await fails(bench, text, fails=False) == (
        f"s0.lua: {CALLBACK} returned -1: because (required by plugstack.conf:1)"
    )


@pytest.mark.covers("spank-lua -1 is failure, anything else success, no value too")
@pytest.mark.parametrize(
    "result", ["", "return", "return 0", "return 1", "return 'x'", "return {}"]
)
async def test_anything_else_is_success(bench: SpankBench, result: str) -> None:
    """SPANK LUA API: "anything else is considered to indicate success"."""
    assert await bench.says(f"say('called') {result}") == ["called"]


@pytest.mark.covers("spank-lua spank(7): required, optional")
async def test_all_scripts_of_a_line_are_called(bench: SpankBench) -> None:
    failing = f"function {CALLBACK}() return -1 end"
    fine = f"function {CALLBACK}() SPANK.log_info(1) end"
    await fails(bench, failing, fine)
    assert [text for _, text in bench.said.lines] == ["s1.lua: 1"]


@pytest.mark.covers("spank-lua -1 is failure, anything else success, no value too")
async def test_minus_one_of_an_optional_line(bench: SpankBench) -> None:
    """CONFIGURATION: optional. It is logged, and goes on."""
    scripts = [
        bench.script(f"function {CALLBACK}() return -1 end", required=False, name="a"),
        bench.script(f"function {CALLBACK}() SPANK.log_info('on') end", line=2, name="b"),
    ]
    async with bench.opened(*scripts) as (made, context):
        await made.call(context, CALLBACK)
    assert bench.said.lines == [
        (
            "error",
            f"{bench.directory}/a.lua: {CALLBACK} returned -1 (ignored: optional in "
            "plugstack.conf:1)",
        ),
        ("info", "b.lua: on"),
    ]


@pytest.mark.covers("spank-lua failonerror")
async def test_failonerror(bench: SpankBench) -> None:
    """CONFIGURATION: failonerror. Without it a script that has an error is left out."""
    broken, raising = "function (", f"function {CALLBACK}() error('broken') end"
    assert "s0.lua:1:" in await fails(bench, broken)
    assert f"s0.lua: {CALLBACK}: s0.lua:1: broken (required" in await fails(bench, raising)
    bench.said.lines.clear()
    scripts = [
        bench.script(broken, fails=False, name="a"),
        bench.script(raising, fails=False, name="b"),
        bench.script(f"function {CALLBACK}() SPANK.log_info('on') end", name="c"),
    ]
    async with bench.opened(*scripts) as (made, context):
        await made.call(context, CALLBACK)
    levels = [level for level, text in bench.said.lines if "traceback" not in text]
    assert levels == ["error", "error", "info"]
    assert "a.lua:1:" in bench.said.lines[0][1]
    assert bench.said.lines[0][1].endswith("; it is left out")


@pytest.mark.covers("spank-lua failonerror")
async def test_a_script_that_is_not_there(bench: SpankBench) -> None:
    there = bench.script(f"function {CALLBACK}() SPANK.log_info('on') end", name="b")
    missing = bench.script("", fails=False)
    os.unlink(missing.path)
    async with bench.opened(missing, there) as (made, context):
        await made.call(context, CALLBACK)
    assert [text for _, text in bench.said.lines] == [
        f"{missing.path}: No such file or directory; it is left out", "b.lua: on",
    ]  # fmt: skip


async def test_a_script_without_an_end(bench: SpankBench) -> None:
    script = bench.script(f"function {CALLBACK}() while true do end end")
    with failing() as told, trio.fail_after(20):
        async with bench.opened(script, lua=Lua(cpu_limit=1)) as (made, context):
            await made.call(context, CALLBACK)
    assert "took too much processor time" in told[0]


async def test_a_script_that_waits_for_ever(bench: SpankBench) -> None:
    script = bench.script(f"function {CALLBACK}() os.execute('sleep 1000') end")
    with failing() as told, trio.fail_after(10):
        async with bench.opened(script, patience=1) as (made, context):
            await made.call(context, CALLBACK)
    assert "took longer than 1 s" in told[0]


async def test_functions_that_nobody_calls_are_told(bench: SpankBench) -> None:
    async with bench.opened(bench.script("function slurm_spank_task_inti() end")):
        pass
    [text] = bench.said.texts()
    assert text.endswith("slurm_spank_task_inti: no such callback, so it is never called")


# --- scripts among themselves


@pytest.mark.parametrize("lua", VERSIONS, indirect=True)
async def test_globals_are_each_script_s_own_and_stay(bench: SpankBench, lua: Lua) -> None:
    """A context's globals survive between callbacks, and are no other script's."""
    text = (
        "count = 0 function slurm_spank_init() count = count + 1 _G.seen = count end "
        f"function {CALLBACK}() SPANK.log_info('%d %d %s', count, _G.seen, tostring(other)) end"
    )
    scripts = [bench.script(text, name="a"), bench.script(text + " other = 1", name="b")]
    async with bench.opened(*scripts, lua=lua) as (made, context):
        await made.call(context, "slurm_spank_init")
        await made.call(context, CALLBACK)
    assert bench.said.texts() == ["a.lua: 1 1 nil", "b.lua: 1 1 1"]


async def test_contexts_share_nothing(bench: SpankBench) -> None:
    text = f"function {CALLBACK}() SPANK.log_info(tostring(seen)) seen = 1 end"
    async with bench.opened(bench.script(text)) as (made, local):
        remote = await made.open("remote", bench.variables)
        for context in (local, remote, local):
            await made.call(context, CALLBACK)
    assert bench.said.texts() == ["a.lua: nil", "a.lua: nil", "a.lua: 1"]


async def test_posix_is_there_as_far_as_scripts_use_it(bench: SpankBench, lua: Lua) -> None:
    body = """
    local posix = require "posix"
    posix.setenv("P", "1") posix.setenv("A", "9", false) posix.unsetenv("PATH")
    say(posix.getenv("P"), spank:getenv("A"), posix.getpid("uid"), posix.getpid().uid)
    say(posix.uname("%s"), posix.basename("/a/b.c"), posix.dirname("/a/b.c"))"""
    uid = os.getuid()
    assert await bench.says(body, lua=lua) == [f"1 1 {uid} {uid}", "Linux b.c /a"]
    assert bench.variables.changed == {"P": "1", "PATH": None}


@pytest.mark.parametrize("lua", VERSIONS, indirect=True)
async def test_posix_of_files(bench: SpankBench, lua: Lua) -> None:
    body = """
    local posix = require "posix"
    say(posix.mkdir("made"), posix.chmod("made", "rwx------"), posix.access("made"))
    say(posix.stat("made", "type"), posix.stat("made").mode, posix.stat("made").uid)
    say(posix.mkdir("made"))
    say(posix.chmod("made", "750"), posix.access("made/x", "rw"), posix.stat("nope"))
    say(posix.rmdir("made"), posix.access("made"))
    say(posix.syslog(posix.LOG_DEBUG, "said"), posix.getcwd() == os.getenv("PWD"))"""
    uid, gone = os.getuid(), "No such file or directory"
    said = await bench.says(body, lua=lua)
    assert said[:3] == ["0 0 0", f"directory rwx------ {uid}", "nil made: File exists 17"]
    assert said[3] == f"0 nil nil nope: {gone} 2"
    assert said[4] == f"0 nil made: {gone} 2"
    assert said[5].startswith("1 ")


@pytest.mark.parametrize("lua", WITH_POSIX[:2], indirect=True)
async def test_the_rest_of_posix_is_the_site_s(bench: SpankBench, lua: Lua) -> None:
    body = """
    local posix = require "posix"
    say(posix.glob("/etc/pass*")[1], require "posix" == posix)
    posix.setenv("P", "1") say(posix.getenv("P"))"""
    assert await bench.says(body, lua=lua) == ["/etc/passwd true", "1"]
    assert bench.variables.changed == {"P": "1"}


async def test_what_posix_lacks_is_an_error(bench: SpankBench) -> None:
    body = """
    package.path, package.cpath = "", ""
    say(pcall(function() return require "posix".glob end))"""
    [said] = await bench.says(body)
    assert said.startswith("false")
    assert said.endswith("posix.glob: module 'posix' not found:")


async def test_a_process_only_while_a_function_may_be_called(bench: SpankBench) -> None:
    """An idle container has no worker, unless a script has a function for the end."""
    for text, kept in (
        (f"function {CALLBACK}() end", False),
        ("function slurm_spank_task_exit() end", False),  # not in this context
        ("function slurm_spank_exit() end", True),
    ):
        async with bench.opened(bench.script(text)) as (made, context):
            await made.call(context, CALLBACK)
            made.end_if_idle()
            assert (made._worker is not None) is kept


async def test_facts_are_what_was_told(bench: SpankBench) -> None:
    assert FACTS.job == 7
    assert await bench.says("say(spank:get_item('S_JOB_ID'))") == ["7"]
