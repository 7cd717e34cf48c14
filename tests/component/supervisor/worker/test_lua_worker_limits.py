"""Scripts that do not end, take too much, or look for a way into Python."""

import importlib.util
import os

import msgspec
import pytest
import trio

from scrun.settings.file.load import Lua
from tests.harness.lua import ARGUMENTS, HEAD, OUT, Bench, failing


def limited(lua: Lua, **limits: int) -> Lua:
    return msgspec.structs.replace(lua, **limits)


# --- time


@pytest.mark.parametrize(
    "body",
    [
        "while true do end",
        "while true do pcall(error, 'x') end",
        "local c = coroutine.wrap(function() while true do end end) c()",
    ],
)
async def test_an_endless_loop(bench: Bench, body: str, lua: Lua) -> None:
    text = await bench.fails(body, limited(lua, cpu_limit=1))
    assert "took too much processor time: is there an endless loop? (cpu_limit in" in text


async def test_commands_do_not_count(bench: Bench) -> None:
    body = "slurm.allocator_command('timeout 1.5 sh -c \"while :; do :; done\"')"
    await bench.stage_in(body, Lua(cpu_limit=1))


@pytest.mark.parametrize(
    "body",
    [
        "while true do end",
        "string.find(string.rep('a', 30000), string.rep('a-', 30) .. 'b')",
        "io.open('@HERE@/fifo')",
        "io.open('@HERE@/fifo', 'w')",
        "for line in io.lines('@HERE@/fifo') do end",
        "while true do slurm.log_info('x') end",
        "while true do print('x') end",
    ],
)
async def test_what_cannot_be_interrupted_is_cancelled(bench: Bench, body: str) -> None:
    os.mkfifo(bench.directory / "fifo")
    script = f"{HEAD}{body} return 0 end\n{OUT}".replace("@HERE@", str(bench.directory))
    async with bench.loaded(script) as loaded:
        with trio.move_on_after(0.3) as scope:
            await loaded.call("slurm_scrun_stage_in", ARGUMENTS, ("", ""), {}, None)  # type: ignore[arg-type]
        assert scope.cancelled_caught
        pid, start = loaded._worker.pid, trio.current_time()
    assert trio.current_time() - start < 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_fifo_is_no_script(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(bench.directory / "scrun.lua")
    monkeypatch.setattr(bench, "write", lambda script: f"{bench.directory}/scrun.lua")
    with trio.fail_after(5):
        assert await bench.refuses("") == "is not a regular file"


async def test_a_script_that_hangs_while_it_is_loaded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrun.supervisor.scripts.host._LOADING", 0.3)
    os.mkfifo(bench.directory / "fifo")
    with trio.fail_after(5):
        text = await bench.refuses(f"io.open('{bench.directory}/fifo')")
    assert text == "was not loaded within 0.3 s"


# --- memory


@pytest.mark.parametrize(
    "body",
    [
        "local s = 'x' while true do s = s .. s end",
        "local t = {} while true do t[#t + 1] = string.rep('x', 100000) .. #t end",
        "local t = {} while true do t[#t + 1] = {} end",
        "string.rep('x', 2 ^ 29)",
        "local t = {} for i = 1, 1e9 do t[i] = slurm.set_bundle_path('/' .. i) .. i end",
        "local t = {} for i = 1, 1e9 do t[i] = slurm.from_json('{\"a\": [1, {}]}') end",
        "local t = {} for i = 1, 1e9 do t[i] = function() return i end slurm.log_debug(i) end",
    ],
)
async def test_memory(bench: Bench, body: str, lua: Lua) -> None:
    text = await bench.fails(body, limited(lua, memory=16))
    assert "not enough memory" in text or "resulting string too large" in text


async def test_a_script_can_go_on_without_memory(bench: Bench, lua: Lua) -> None:
    body = """
    local t = {}
    local done, reason = pcall(function()
        while true do t[#t + 1] = string.rep("x", 100000) .. #t end
    end)
    t = nil
    collectgarbage()
    print(done, reason, slurm.allocator_command("printf on"))
    """
    (said,) = await bench.says(body, limited(lua, memory=16))
    assert said.startswith("false\t")
    assert "not enough memory" in said
    assert said.endswith("\t0\ton")


async def test_the_least_memory_is_enough_to_begin_with(bench: Bench, lua: Lua) -> None:
    await bench.stage_in("slurm.from_json('{}') slurm.log_info('x')", limited(lua, memory=1))


async def test_a_worker_that_crashes(bench: Bench) -> None:
    body = "local file = io.open('/proc/self/stat') local pid = file:read('*n')"
    body += " os.execute('kill -SEGV ' .. string.format('%d', pid) .. '; sleep 60')"
    assert (await bench.fails(body, Lua())).endswith(
        "its process was killed by signal 11 (SIGSEGV): it has crashed; "
        "try again, and tell who installed it"
    )


async def test_a_worker_that_talks_nonsense(bench: Bench) -> None:
    async with bench.loaded(f"{HEAD} return 0 end\n{OUT}") as loaded:
        # more than a frame may have: the rest of what it says would be taken for words
        loaded._worker._channel._data += b"\x7f\xff\xff\xff"
        with trio.fail_after(5), failing() as texts:
            await loaded.call("slurm_scrun_stage_in", ARGUMENTS, ("", ""), {}, None)  # type: ignore[arg-type]
        assert texts[0].endswith(
            "its process was killed by signal 9 (SIGKILL): is there no memory left?"
        )


# --- Python

REACH = r"""
local seen, queue, found = {}, {}, {}
local function visit(value, path)
    local kind = type(value)
    if kind == "userdata" or kind == "thread" then
        if not (io.type(value) or tostring(value):find("^thread")) then
            found[#found + 1] = path .. " is " .. tostring(value)
        end
    end
    if kind == "userdata" or kind == "table" or kind == "function" or kind == "string" then
        if not seen[value] then
            seen[value] = true
            queue[#queue + 1] = { value, path }
        end
    end
end
local function known(value, path)
    visit(value, path)
    local done, meta = pcall(getmetatable, value)
    if done and meta then visit(meta, path .. "<meta>") end
    if type(value) == "table" then
        for k, v in next, value do
            visit(k, path .. "<key>")
            visit(v, path .. "." .. tostring(k))
        end
    elseif type(value) == "function" then
        local info = debug.getinfo(value)
        for k, v in pairs(info) do if k ~= "func" then visit(v, path .. "<info>" .. k) end end
        if getfenv then visit(getfenv(value), path .. "<env>") end
    end
end
known(_G, "_G")
known("", "string")
known(require "json", "json")
for name, value in pairs(package.loaded) do visit(value, "loaded." .. name) end
for level = 0, 50 do
    local info = debug.getinfo(level)
    if info then visit(info.func, "level" .. level) end
    if getfenv and info and level > 0 then
        local done, env = pcall(getfenv, level)
        if done then visit(env, "env" .. level) end
    end
end
-- what errors of our functions look like
local function raise() error({}) end
local function nothing() return {} end
local odd = {
    false, 7, 0/0, 2^70, "x", "\255", "{", string.rep("[", 5000), {}, print, raise,
    setmetatable({}, { __tostring = nothing }), setmetatable({}, { __tostring = raise }),
    setmetatable({}, { __index = raise, __len = raise, __pairs = raise }),
    coroutine.create(nothing),
}
odd[#odd + 1] = { odd }
local cycle = {} cycle[1] = cycle
odd[#odd + 1] = cycle
for name, call in pairs(slurm) do
    if type(call) == "function" and name ~= "remote_command" then
        for i = 0, #odd do
            local results = { pcall(call, odd[i], odd[i]) }
            for j = 1, 3 do known(results[j], name .. " of " .. type(odd[i])) end
            if not results[1] and type(results[2]) ~= "string" and type(results[2]) ~= "table" then
                found[#found + 1] = name .. " raises a " .. type(results[2])
            end
            local thread = coroutine.create(call)
            results = { coroutine.resume(thread, odd[i]) }
            for j = 1, 3 do known(results[j], name .. " in a coroutine") end
        end
    end
end
while #queue > 0 do
    local entry = table.remove(queue)
    known(entry[1], entry[2])
end
for _, text in ipairs(found) do slurm.log_error(text) end
slurm.log_info("looked")
"""


async def test_nothing_of_python_can_be_reached(bench: Bench, lua: Lua) -> None:
    await bench.stage_in(REACH, lua)
    assert [text for text in bench.said.texts("error") if " is " in text or "raises" in text] == []
    assert "looked" in bench.said.texts("info")


@pytest.mark.parametrize(
    "expression",
    [
        "python", "package.loaded.python", "debug.getupvalue", "debug.upvalueid",
        "debug.upvaluejoin", "debug.setupvalue", "debug.getlocal", "debug.setlocal",
        "debug.getregistry", "debug.getmetatable", "debug.setmetatable", "debug.getuservalue",
        "debug.getfenv", "debug.setfenv", "debug.gethook", "debug.sethook", "debug.debug",
        "package.loaded.debug.getregistry", "require('debug').getregistry",
    ],
)  # fmt: skip
async def test_what_is_not_there(bench: Bench, expression: str, lua: Lua) -> None:
    await bench.stage_in(f"assert({expression} == nil)", lua)


async def test_a_script_that_changes_what_all_use(bench: Bench, lua: Lua) -> None:
    body = """
    local unknown = function() error("not yours") end
    for _, name in ipairs { "type", "tostring", "select", "error", "pcall", "xpcall", "next",
            "setmetatable", "getmetatable", "rawget", "collectgarbage", "unpack" } do
        _G[name] = unknown
    end
    string.format, math.floor, table.unpack, io.tmpfile = unknown, unknown, unknown, unknown
    _VERSION = 7
    slurm.log_info("%d", 7)
    slurm.log("x", 1)
    os.execute("echo y")
    io.popen("echo z"):close()
    slurm.set_bundle_path("/n")
    json, slurm.log_info, slurm.SUCCESS = nil, nil, slurm.SUCCESS
    _G = nil
    """
    assert await bench.stage_in(body, lua) == ("/n", "")
    assert sorted(bench.said.texts()) == ["7", "x", "y"]


DEBUG = """
local open = assert(package.loadlib("@LIB@", "luaopen_debug"))
local library = open() or debug
local seen, count = {}, 0
seen[seen] = true -- an upvalue of look, which grows while that walks through it
local function look(value)
    if seen[value] or value == nil then return end
    seen[value] = true
    if type(value) == "userdata" and not io.type(value) then
        count = count + 1
        for _, name in ipairs { "__self__", "__func__", "__globals__", "__class__", 1, "lua" } do
            local done, result = pcall(function() return value[name] end)
            assert(not done or result == nil, tostring(name) .. " of " .. tostring(value))
            assert(not pcall(function() value[name] = print end))
        end
    elseif type(value) == "function" then
        for i = 1, 255 do
            local name, inner = library.getupvalue(value, i)
            if not name then break end
            look(inner)
        end
    elseif type(value) == "table" then
        for k, v in next, value do look(k) look(v) end
    end
end
look(_G)
look(library.getregistry())
slurm.log_info(count > 0 and "found" or "none")
"""


async def test_python_functions_have_no_members_even_where_they_are_found(
    bench: Bench, lua: Lua
) -> None:
    # A script is its user's: it may load any C library, with Lua's own debug library in lupa's.
    spec = importlib.util.find_spec("lupa.lua" + lua.version.replace(".", ""))
    assert spec is not None
    assert spec.origin is not None
    assert "found" in await bench.says(DEBUG.replace("@LIB@", spec.origin), lua)
