import copy
import importlib
import sys
from typing import Any

import pytest

from scrun.supervisor.worker.values import MAX_DEPTH, Values, ValuesError
from tests.harness.nightly import nightly

VERSIONS = ["51", nightly("52"), nightly("53"), "54", nightly("55")]
INFINITY = 18446744073709551615  # RLIM_INFINITY


class Lua:
    def __init__(self, version: str) -> None:
        self.has_integers = version >= "53"
        self.runtime = importlib.import_module(f"lupa.lua{version}").LuaRuntime(
            encoding=None,
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=True,
        )
        self.values = Values(self.runtime)
        for name in ("null", "mark_array", "mark_object"):
            self.runtime.globals()[name.encode()] = getattr(self.values, name)

    def run(self, code: str, tree: Any = None) -> Any:
        """Run code with `doc`, and return what it returns, as Lua has it."""
        self.runtime.globals()[b"doc"] = self.values.to_lua(tree)
        return self.runtime.execute(code.encode())

    def change(self, code: str, tree: Any) -> Any:
        """Run code that changes `doc`; return what became of it."""
        self.run(code, tree)
        return self.values.to_python(self.runtime.globals()[b"doc"])


@pytest.fixture(params=VERSIONS)
def lua(request: pytest.FixtureRequest) -> Lua:
    return Lua(request.param)


TREES: list[Any] = [
    None,
    True,
    False,
    0,
    "",
    "text",
    "\0 \U0001f600 \ud800 \udfff ä",
    [],
    {},
    [[]],
    [{}],
    [[], {}],
    [None],
    [None, 1, None],
    [False, True],
    {"a": None, "b": [], "c": {}},
    {"z": 1, "a": 2, "m": {"y": 1, "b": [3, 2, 1]}},
    {"": 1, "1": 2, "a.b": 3, "\0": 4},
    {"soft": INFINITY, "hard": -(2**63), "more": 10**40, "less": -(10**40)},
    [2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63) - 1],
    [0.5, -1.25e-7, 0.1, 1e300],
    list(range(1000)),
    {f"member {i}": i for i in range(1000)},
    [{"type": "a", "options": ["x"]}, {"type": "b"}, {}],
]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: repr(tree)[:30])
def test_round_trip(lua: Lua, tree: Any) -> None:
    result = lua.change("", tree)
    assert result == tree
    assert repr(result) == repr(tree)  # the order, and the types


def test_floats_stay_floats_where_lua_can_tell(lua: Lua) -> None:
    kinds = [type(number) for number in lua.change("", [1, 1.0])]
    assert kinds == ([int, float] if lua.has_integers else [int, int])


def test_what_json_never_gives(lua: Lua) -> None:
    assert lua.run("return doc", b"\xff") == b"\xff"
    assert lua.values.to_python(lua.values.to_lua((1, 2))) == [1, 2]  # type: ignore[arg-type]
    assert lua.values.to_python(None) is None
    with pytest.raises(ValuesError, match="a Python set has no counterpart"):
        lua.values.to_lua({"a": {1}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "code",
    [
        "assert(doc.null and doc.null ~= nil and doc.null == null)",
        "assert(doc.null ~= {} and doc.null ~= 'null' and doc.null ~= false and {} ~= null)",
        "assert(tostring(doc.null) == 'null' and doc.null.member == nil)",
        "assert(doc.list[1] == null and #doc.list == 2)",
        "assert(not pcall(function() doc.null.member = 1 end))",
    ],
)
def test_null(lua: Lua, code: str) -> None:
    lua.run(code, {"null": None, "list": [None, None]})


@pytest.mark.parametrize(
    "code",
    [
        "assert(tostring(doc[1]) == '18446744073709551615')",
        "assert('limit ' .. doc[1] .. '!' == 'limit 18446744073709551615!')",
        "assert(doc[1] .. 1 == '184467440737095516151' and doc[1] .. doc[1])",
        "assert(doc[1] == doc[2] and doc[1] ~= doc[3] and doc[1] ~= null and doc[1] ~= {})",
        "assert(doc[1] < doc[3] and doc[1] <= doc[2] and doc[3] > doc[1])",
        "assert(not (doc[1] < doc[2]) and doc[3] >= doc[1])",
        "assert(tostring(doc[1] + 1) == '18446744073709551616')",
        "assert(tostring(-doc[1]) == '-18446744073709551615')",
        "assert(tostring(2 * doc[1]) == '36893488147419103230')",
        "assert(doc[1] - doc[1] == 0 and doc[3] - doc[1] == 1 and doc[1] % 10 == 5)",
        "assert(doc[1] / 1 == 18446744073709551616.0)",
        "assert(doc[1] ^ 1 == 18446744073709551616.0)",
        "assert(not pcall(function() doc[1][2] = 1 end))",
    ],
)
def test_large_integers(lua: Lua, code: str) -> None:
    lua.run(code, [INFINITY, INFINITY, INFINITY + 1])


def test_large_integers_with_numbers(lua: Lua) -> None:
    if lua.runtime.lua_version >= (5, 2):  # 5.1 asks no metamethod when the types differ
        lua.run("assert(doc > 1 and doc >= 1.5 and 1 < doc and -1 <= doc)", INFINITY)
    if lua.has_integers:
        code = "return function(a, b) return a // b end"
        divide = lua.runtime.execute(code.encode())
        assert divide(lua.values.to_lua(INFINITY), 10) == INFINITY // 10


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("doc + 'x'", "attempt to compute with a string"),
        ("doc + {}", "attempt to compute with a table"),
        ("{} + doc", "attempt to compute with a table"),
        ("doc + null", "attempt to compute with a table"),
        ("doc + print", "attempt to compute with a function"),
        ("doc + true", "attempt to compute with a boolean"),
        ("doc / 0", "division by zero"),
        ("doc % 0", "by zero"),  # modulo, or division since Python 3.14
        ("doc ^ 10000", "range error"),
    ],
)
def test_errors_of_large_integers_are_strings(lua: Lua, code: str, message: str) -> None:
    _, error = lua.run(f"return pcall(function() local _ = {code} end)", INFINITY)
    assert isinstance(error, bytes)
    assert message in error.decode()


@pytest.mark.parametrize(
    ("tree", "code", "expected"),
    [
        # an empty table is what stood there
        ({"a": [1]}, "doc.a = {}", {"a": []}),
        ({"a": {"b": 1}}, "doc.a = {}", {"a": {}}),
        ({"a": {"b": {"c": 1}, "d": [1]}}, "doc.a = {b={}, d={}}", {"a": {"b": {}, "d": []}}),
        ({"a": 1}, "doc.a = {}", {"a": []}),
        ({"a": {"b": 1}}, "doc.a = nil; doc.a = {}", {"a": {}}),
        ({}, "doc.a = {}", {"a": []}),
        ({}, "doc.a = {b={}}", {"a": {"b": []}}),
        ([{"a": 1}, {"b": {"c": 1}}], "doc[1] = {}; doc[3] = {}", [{}, {"b": {"c": 1}}, {}]),
        ([[1], [2]], "doc[1] = {}", [[], [2]]),
        ([{"a": {"b": 1}}], "doc[2] = {a={}}", [{"a": {"b": 1}}, {"a": {}}]),
        ([{"a": 1}, [1]], "doc[1] = {}", [[], [1]]),
        ([{"a": 1}, 1], "doc[1] = {}", [[], 1]),
        ({"a": [1]}, "doc.a[1] = nil", {"a": []}),
        ({"a": {"b": 1}}, "doc.a.b = nil", {"a": {}}),
        ({"a": [], "b": {}}, "doc.a, doc.b = doc.b, doc.a", {"a": {}, "b": []}),
        ({"a": [1]}, "doc.a = mark_object({})", {"a": {}}),
        ({"a": {"b": 1}}, "doc.a = mark_array()", {"a": []}),
        ({"z": 1, "a": 2}, "mark_object(doc)", {"z": 1, "a": 2}),
        # the content decides
        ({"a": []}, "doc.a.b = 1", {"a": {"b": 1}}),
        ({"a": {}}, "doc.a[1] = 'x'", {"a": ["x"]}),
        ({"a": {"b": 1}}, "doc.a.b = nil; table.insert(doc.a, 2)", {"a": [2]}),
        ({}, "doc.a = mark_object({1})", {"a": [1]}),
        # tables are tables
        ([1, 2], "table.insert(doc, 1, 0); table.insert(doc, 9)", [0, 1, 2, 9]),
        ([1, 2, 3], "table.remove(doc); table.remove(doc, 1)", [2]),
        ([3, 1, 2], "table.sort(doc)", [1, 2, 3]),
        ([1, 2], "for i, v in ipairs(doc) do doc[i] = v * 2 end; doc[#doc + 1] = 5", [2, 4, 5]),
        ({"a": 1}, "for k, v in pairs(doc) do doc[k] = v + 1 end", {"a": 2}),
        ({"a": 1}, "assert(next(doc) == 'a'); assert(next({}) == nil)", {"a": 1}),
        ([1], "doc = {doc, doc}", [[1], [1]]),
    ],
)  # fmt: skip
def test_changes(lua: Lua, tree: Any, code: str, expected: Any) -> None:
    assert repr(lua.change(code, tree)) == repr(expected)


def test_new_members_follow_by_name(lua: Lua) -> None:
    tree = {"z": 1, "b": 2, "m": 3}
    changed = lua.change("doc.y = 1; doc.c = 1; doc.b = nil; doc.m = nil; doc.m = 4", tree)
    assert list(changed) == ["z", "m", "c", "y"]
    assert list(lua.change("doc = {d=1, a=1, c=1}", {})) == ["a", "c", "d"]
    # the order of what stood there
    replaced = lua.change("doc.x = {a=1, q=1, z=1}", {"x": {"z": 0, "a": 0}})
    assert list(replaced["x"]) == ["z", "a", "q"]


DEEP_COPY = """
local function deepcopy(value)
    if type(value) ~= "table" then return value end
    local copy = {}
    for k, v in next, value do copy[deepcopy(k)] = deepcopy(v) end
    return setmetatable(copy, METATABLE)
end
doc = deepcopy(doc)
"""


@pytest.mark.parametrize("metatable", ["getmetatable(value)", "deepcopy(getmetatable(value))"])
def test_deep_copies_keep_what_is_known(lua: Lua, metatable: str) -> None:
    tree: dict[str, Any] = {"z": [], "a": {}, "n": None, "i": INFINITY, "l": [{"y": 1, "b": []}]}
    assert repr(lua.change(DEEP_COPY.replace("METATABLE", metatable), tree)) == repr(tree)
    assert lua.runtime.execute(b"return doc.n == null and doc.i == doc.i + 0")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("doc.a = print", "a: a function has no counterpart in JSON"),
        ("doc.a = io.stdout", "a: a userdata has no counterpart in JSON"),
        ("doc.a = coroutine.create(function() end)", "a: a .* has no counterpart in JSON"),
        ("doc.a = {1, {b = print}}", r"a\[2\]\.b: a function"),
        ("doc['a b'] = {['1'] = print}", r'\["a b"\]\["1"\]: a function'),
        ("doc.a = 0/0", "a: -?nan is not a number"),
        ("doc.a = 1/0", "a: inf is not a number"),
        ("doc.a = -1/0", "a: -inf is not a number"),
        ("doc.a = {1, 2, nil, 4}", "a: a list without its element 3"),
        ("doc.list[#doc.list + 2] = 1", "list: a list without its element 3"),
        ("doc.list[1] = nil", "list: a list without its element 1"),
        ("doc.list[0] = 1; doc.list[2] = nil", "list: a list without its element 2"),
        ("doc.list.name = 1", "list: a table with both names and indices"),
        ("doc.a = {x = 1, 2}", "a: a table with both names and indices"),
        ("doc.a = {[true] = 1}", "a: a table with keys that are neither"),
        ("doc.a = {[true] = 1, [1] = 1}", "a: a table with keys that are neither"),
        ("doc.a = {[1.5] = 1}", "a: a table with keys that are neither"),
        ("doc.a = {[{}] = 1}", "a: a table with keys that are neither"),
        ("doc.a = 'x\\255'", "a: a string that is not UTF-8, at its byte 2"),
        ("doc['\\255'] = 1", "a string that is not UTF-8, at its byte 1"),
        ("doc.a = {doc}", r"a\[1\]: a table that contains itself"),
        ("doc.big[1] = 'x'", "big: a large integer that was written to"),
        ("for i = 1, 1000 do doc = {doc} end", r"^(\[1\]){8}\.\.\.: nested deeper than 1000"),
    ],
)
def test_refused(lua: Lua, code: str, message: str) -> None:
    tree: dict[str, Any] = {"list": [1, 2], "big": INFINITY}
    with pytest.raises(ValuesError, match=message):
        lua.change(code, tree)
    assert lua.change("", tree) == tree  # the next one does not suffer


def test_metamethods_are_not_asked(lua: Lua) -> None:
    boom = "function() error('asked') end"
    keys = ("__index", "__newindex", "__pairs", "__ipairs", "__len", "__tostring", "__eq")
    code = f"setmetatable(doc, {{{', '.join(f'{key} = {boom}' for key in keys)}}})"
    assert lua.change(code, {"a": [1]}) == {"a": [1]}
    assert lua.change("setmetatable(doc, {__metatable = 1})", {"a": 1}) == {"a": 1}
    assert lua.change("setmetatable(doc, {__metatable = {}})", {"a": 1}) == {"a": 1}


@pytest.mark.parametrize("shape", ["-1", "1e9", "0.5", "'x'", "{}", "true"])
def test_written_metatables(lua: Lua, shape: str) -> None:
    assert lua.change(f"getmetatable(doc).__shape = {shape}", {"b": 1, "a": [1]}) == {
        "a": [1],
        "b": 1,
    }


def test_marks_are_for_tables(lua: Lua) -> None:
    for code in ("mark_array(1)", "mark_object('x')", "mark_array(null)", "mark_object(doc)"):
        ok, error = lua.run(f"return pcall(function() {code} end)", INFINITY)
        assert not ok
        assert b": a table is needed" in error


def test_depth(lua: Lua) -> None:
    tree: list[Any] = []
    for _ in range(MAX_DEPTH - 1):
        tree = [tree]
    limit = sys.getrecursionlimit()
    result = lua.change("", tree)
    assert sys.getrecursionlimit() == limit
    depth = 0
    while result:
        depth, [result] = depth + 1, result
    assert depth == MAX_DEPTH - 1
    with pytest.raises(ValuesError, match="nested deeper"):
        lua.values.to_lua([tree])


def test_globals_and_string_methods_may_be_replaced(lua: Lua) -> None:
    lua.runtime.execute(
        b"for _, n in ipairs({'error', 'type', 'pairs', 'ipairs', 'rawget', 'tostring',"
        b" 'getmetatable', 'setmetatable', 'next', 'select', 'math', 'table'}) do _G[n] = nil end"
    )
    tree = {"a": [1, None, INFINITY]}
    assert lua.change("doc.b = doc.a[3] + 1 .. ''", copy.deepcopy(tree)) == {
        **tree,
        "b": str(INFINITY + 1),
    }
