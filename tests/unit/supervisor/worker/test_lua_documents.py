import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from scrun.supervisor.worker.documents import install
from tests.harness.nightly import nightly

VERSIONS = ["51", nightly("52"), nightly("53"), "54", nightly("55")]
INFINITY = 18446744073709551615  # RLIM_INFINITY


class Lua:
    """A runtime as the worker makes it, with `slurm` as far as it is here, and `text`."""

    def __init__(self, version: str) -> None:
        self.runtime = importlib.import_module(f"lupa.lua{version}").LuaRuntime(
            encoding=None,
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=True,
        )
        functions = install(self.runtime)._asdict()
        self.runtime.globals()[b"slurm"] = self.runtime.table_from(
            {name.encode(): function for name, function in functions.items()}
        )

    def run(self, code: str, text: str | bytes = "") -> Any:
        encoded = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self.runtime.globals()[b"text"] = encoded
        return self.runtime.execute(code.encode())

    def error(self, code: str, text: str | bytes = "") -> str:
        """Run code that fails; return the message, for which a script needs no tostring."""
        ok, error = self.run(f"return pcall(function() {code} end)", text)
        assert not ok
        assert isinstance(error, bytes)
        return error.decode()


@pytest.fixture(params=VERSIONS)
def lua(request: pytest.FixtureRequest) -> Lua:
    return Lua(request.param)


def compact(text: str) -> str:
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))


BOTH = [
    ("local json = require 'json'", "json.decode", "json.encode"),
    ("", "slurm.from_json", "slurm.to_json"),
]


@pytest.mark.covers("slurm-scrun slurm.to_json fails on lists, makes floats of integers")
@pytest.mark.parametrize(("before", "decode", "encode"), BOTH)
@pytest.mark.parametrize(
    "text",
    [
        "null",
        "true",
        "false",
        '"a"',
        "[]",
        "{}",
        ' {"b": [], "a": {}, "n": [null], "z": null} ',
        '{"hard": 18446744073709551615, "soft": -9223372036854775808, "i": 9223372036854775807}',
        '{"x": 123456789012345678901234567890, "f": 0.1, "e": 1.5e+300}',
        '{"a": "\\u0000\\n\\"\\\\ ä \\ud83d\\ude00"}',
        "\ufeff[1]",
    ],
)
def test_json_round_trip(lua: Lua, before: str, decode: str, encode: str, text: str) -> None:
    result = lua.run(f"{before} return {encode}({decode}(text))", text)
    assert result.decode() == compact(text.removeprefix("\ufeff"))


@pytest.mark.parametrize("escape", ['"\\ud800"', '"a\\udfffb"', '{"\\udc80":1}'])
def test_lone_surrogates_leave_as_escapes(lua: Lua, escape: str) -> None:
    code = "local json = require 'json'; return json.encode(json.decode(text))"
    assert lua.run(code, escape).decode() == escape


def test_duplicate_names(lua: Lua) -> None:
    code = "return slurm.to_json(slurm.from_json(text))"
    assert lua.run(code, '{"a":1,"b":2,"a":3}') == b'{"a":3,"b":2}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "b": 2,\n "c": x}', "line 3 column 7: Expecting value"),
        ("", "line 1 column 1: Expecting value"),
        ("[1] 2", "line 1 column 5: Extra data"),
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        (b'"\xff"', "not UTF-8 at byte 2"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("[" * 1001 + "]" * 1001, "nested deeper than 1000 levels"),
        ('{"a":' * 1001 + "1" + "}" * 1001, "nested deeper than 1000 levels"),
        ("9" * 5000, "ValueError: Exceeds the limit"),
    ],
)
def test_no_json(lua: Lua, text: str | bytes, message: str) -> None:
    for name in ("slurm.from_json", "require('json').decode"):
        ok, error = lua.run(f"return pcall({name}, text)", text)
        shown = "json.decode" if "json'" in name else name
        assert not ok
        assert error.decode().startswith(f"{shown}: {message}")


def test_deep_but_not_too_deep(lua: Lua) -> None:
    text = "[" * 1000 + "]" * 1000
    assert lua.run("return slurm.to_json(slurm.from_json(text))", text).decode() == text
    assert lua.run("return slurm.to_json(slurm.from_yaml(text))", text).decode() == text
    assert lua.run("return slurm.to_yaml(slurm.from_json(text))", text).strip().endswith(b"[]")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("slurm.from_json()", "slurm.from_json: a string is needed, not a nil"),
        ("slurm.from_json(5)", "slurm.from_json: a string is needed, not a number"),
        ("slurm.from_yaml({})", "slurm.from_yaml: a string is needed, not a table"),
        ("slurm.from_json(print)", "slurm.from_json: a string is needed, not a function"),
        ("slurm.from_json(io.stdout)", "slurm.from_json: a string is needed, not a userdata"),
        ("slurm.to_json(nil)", "slurm.to_json: a value is needed, not nil; null is json.null"),
        ("slurm.to_json({a={print}})", "slurm.to_json: a[1]: a function has no counterpart"),
        ("slurm.to_yaml({a={print}})", "slurm.to_yaml: a[1]: a function has no counterpart"),
        ("slurm.to_json({a=0/0})", "slurm.to_json: a: "),
        ("slurm.to_json(print)", "slurm.to_json: a function has no counterpart in JSON"),
        ("require('json').encode({1, x=1})", "json.encode: a table with both names and indices"),
    ],
)
def test_errors_are_strings_with_a_place(lua: Lua, code: str, message: str) -> None:
    error = lua.error(f"local _ = {code}")
    assert message in error
    assert error.startswith('[string "<python>"]:1: ')


def test_in_a_coroutine(lua: Lua) -> None:
    code = """
        local resume = coroutine.wrap(function()
            local doc = slurm.from_json(text)
            coroutine.yield()
            return slurm.to_json(doc)
        end)
        resume()
        return resume()
    """
    assert lua.run(code, '{"b":[1,{}],"a":[]}') == b'{"b":[1,{}],"a":[]}'


REACHABLE = """
    local seen, found = {}, {}
    local function visit(value, path)
        if type(value) == "userdata" then found[#found + 1] = path end
        if type(value) ~= "table" or seen[value] then return end
        seen[value] = true
        visit(getmetatable(value), path .. "()")
        for k, v in next, value do
            visit(k, path .. ".key")
            visit(v, path .. "." .. tostring(k))
        end
    end
    local json = require "json"
    visit(json, "json")
    visit(slurm, "slurm")
    visit(package.loaded.json, "loaded")
    visit(json.decode(text), "doc")
    visit({pcall(json.decode, "x")}, "error")
    visit({pcall(json.encode, print)}, "error")
    visit({pcall(function() return json.decode(text)[2] + {} end)}, "error")
    visit({require "json"}, "require")
    return table.concat(found, " ")
"""


def test_nothing_of_python_is_reachable(lua: Lua) -> None:
    assert lua.run(REACHABLE, f'[null, {INFINITY}, {{"a": [1, "x"]}}]') == b""


MAN_PAGE = """
local config = DECODE(text)
if config["process"]["user"]["additionalGids"] ~= nil then
    config["process"]["user"]["additionalGids"] = nil
end
local found = false
if config["linux"]["namespaces"] == nil then config["linux"]["namespaces"] = {} end
for _, namespace in ipairs(config["linux"]["namespaces"]) do
    if namespace["type"] == "user" then found = true end
end
if found == false then table.insert(config["linux"]["namespaces"], {type= "user"}) end
config["linux"]["uidMappings"] = {{containerID=0, hostID=math.floor(1000.0), size=1}}
config["linux"]["cgroupsPath"] = nil
for _, mount in ipairs(config["mounts"]) do
    local opts = {}
    if mount["options"] ~= nil then
        for _, opt in ipairs(mount["options"]) do
            if string.sub(opt, 1, 4) ~= "gid=" then table.insert(opts, opt) end
        end
    end
    if opts ~= nil and #opts > 0 then mount["options"] = opts else mount["options"] = nil end
end
local mounts = {}
for i, mount in ipairs(config["mounts"]) do
    if mount["type"] ~= "bind" then table.insert(mounts, mount) end
end
config["mounts"] = mounts
config["ociVersion"] = "1.0.0"
if config["process"]["env"] == nil then config["process"]["env"] = {} end
table.insert(config["process"]["env"], "A=1")
if config["hooks"] ~= nil and config["hooks"]["prestart"] ~= nil then
    config["hooks"]["prestart"] = nil
end
return ENCODE(config)
"""
CONFIG: dict[str, Any] = {
    "ociVersion": "1.2.1",
    "process": {
        "user": {"uid": 0, "gid": 0, "additionalGids": [0, 5], "umask": 18},
        "args": [],
        "rlimits": [{"type": "RLIMIT_CORE", "hard": INFINITY, "soft": INFINITY}],
        "apparmorProfile": None,
    },
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/b", "type": "bind", "source": "/b", "options": ["rbind"]},
        {"destination": "/p", "type": "devpts", "source": "p", "options": ["gid=5", "rw"]},
        {"destination": "/q", "type": "mqueue", "source": "q", "options": ["gid=5"]},
    ],
    "hooks": {"prestart": [{"path": "/x"}]},
    "annotations": {},
    "linux": {"cgroupsPath": "/x", "namespaces": [], "resources": {"devices": []}, "x": {}},
}


@pytest.mark.covers("slurm-scrun slurm.to_json fails on lists, makes floats of integers")
@pytest.mark.parametrize(("before", "decode", "encode"), BOTH)
def test_man_page_patterns(lua: Lua, before: str, decode: str, encode: str) -> None:
    code = before + MAN_PAGE.replace("DECODE", decode).replace("ENCODE", encode)
    result = lua.run(code, json.dumps(CONFIG))
    expected: dict[str, Any] = {
        **CONFIG,
        "ociVersion": "1.0.0",
        "process": {
            **CONFIG["process"],
            "user": {"uid": 0, "gid": 0, "umask": 18},
            "env": ["A=1"],
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/p", "type": "devpts", "source": "p", "options": ["rw"]},
            {"destination": "/q", "type": "mqueue", "source": "q"},
        ],
        "hooks": {},
        "linux": {
            "namespaces": [{"type": "user"}],
            "resources": {"devices": []},
            "x": {},
            "uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}],
        },
    }
    assert result.decode() == json.dumps(expected, separators=(",", ":"))


def test_no_mount_left(lua: Lua) -> None:
    code = "local c = slurm.from_json(text); c.mounts = {}; return slurm.to_json(c)"
    assert json.loads(lua.run(code, json.dumps(CONFIG)))["mounts"] == []


def json_trees(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    text = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=8)
    return st.recursive(
        st.none() | st.booleans() | numbers | text,
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(text, inner, max_size=6),
        max_leaves=40,
    )


INTEGERS = st.integers() | st.integers(-(2**65), 2**65)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SHARED = {version: Lua(version) for version in ("51", "54")}


def check_any_json(version: str, tree: Any) -> None:
    text = json.dumps(tree)
    code = "local json = require 'json'; return json.encode(json.decode(text))"
    result = SHARED[version].run(code, text).decode()
    expected = json.loads(text)  # two halves of a pair in a row are one character there, too
    assert json.dumps(json.loads(result)) == json.dumps(expected)  # text: the order, and types


@given(json_trees(INTEGERS | FLOATS))
def test_any_json_is_kept(tree: Any) -> None:
    check_any_json("54", tree)


@given(st.binary() | st.text("[]{}\",:0123456789eE+-. \n\\utrfalsn&*!|>'#%?").map(str.encode))
@settings(max_examples=300)
def test_any_bytes_are_an_answer_or_a_string(data: bytes) -> None:
    code = "local ok, e = pcall(READ, text); return ok, type(e) == 'string'"
    for read in ("slurm.from_json", "slurm.from_yaml"):
        ok, is_string = SHARED["54"].run(code.replace("READ", read), data)
        assert ok or is_string


# -- which json.lua ---------------------------------------------------------------------------


def site_module(directory: Path, content: str = "return {site = true}") -> str:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "json.lua").write_text(content)
    return f"{directory}/?.lua"


IS_SITE = "return require('json').site == true"


def test_builtin_module(lua: Lua) -> None:
    assert lua.run("return require 'json' == require 'json'")
    code = "package.loaded.json = nil; return require('json').null == slurm.from_json(text)"
    assert lua.run(code, "null")
    assert "not found" in lua.error("require 'jsonx'")


@pytest.mark.parametrize("path", ["package.path .. ';NEW'", "'NEW;' .. package.path", "'NEW'"])
def test_script_sets_path(lua: Lua, tmp_path: Path, path: str) -> None:
    new = path.replace("NEW", site_module(tmp_path / "site"))
    assert lua.run(f"package.path = {new}; {IS_SITE}")


def test_script_sets_path_without_such_a_module(lua: Lua, tmp_path: Path) -> None:
    assert not lua.run(f"package.path = '{tmp_path}/?.lua'; {IS_SITE}")
    assert lua.run("package.loaded.json = nil; package.path = nil; return require('json').decode")


def test_working_directory_does_not_count(
    lua: Lua, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_module(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert lua.run("return package.path:find('./?.lua', 1, true) ~= nil")
    assert not lua.run(IS_SITE)


def test_broken_module_of_the_site(lua: Lua, tmp_path: Path) -> None:
    new = site_module(tmp_path, "return {")
    assert "json.lua:1:" in lua.error(f"package.path = '{new}'; require 'json'")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("value", ["NEW", "NEW;;", ";;NEW", "/none/?.lua;;NEW", "./?.lua"])
def test_environment(
    version: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = site_module(tmp_path / "site")
    site_module(tmp_path / "cwd", "return {cwd = true}")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("LUA_PATH", value.replace("NEW", new))
    monkeypatch.delenv(f"LUA_PATH_{version[0]}_{version[1]}", raising=False)
    member = "site" if "NEW" in value else "cwd"
    assert Lua(version).run(f"return require('json').{member} == true")


# -- YAML -------------------------------------------------------------------------------------


def test_preload_goes_first(lua: Lua) -> None:
    code = "package.preload.json = function() return {site = true} end "
    assert lua.run(code + IS_SITE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("---\n", None),
        ("a: 1\nb: [x, {c: ~}]\n", {"a": 1, "b": ["x", {"c": None}]}),
        ("z: 1\na: 2\nm: {}\nl: []\n", {"z": 1, "a": 2, "m": {}, "l": []}),
        ("[~, null, Null, NULL, '']", [None, None, None, None, ""]),
        ("[true, True, TRUE, false]", [True, True, True, False]),
        ("[yes, no, on, off, y, n]", ["yes", "no", "on", "off", "y", "n"]),
        ("[1, -1, +1, 0o17, 0x1F, 010, 1_000, 1:30]", [1, -1, 1, 15, 31, 10, "1_000", "1:30"]),
        ("[0.5, 1., .5, 1e3, 1.5E-3, 1e, .]", [0.5, 1.0, 0.5, 1000.0, 0.0015, "1e", "."]),
        (f"[{INFINITY}, {10**30}]", [INFINITY, 10**30]),
        ("[2026-01-01, =, <<]", ["2026-01-01", "=", "<<"]),
        ("['1', \"2\", !!str 3]", ["1", "2", "3"]),
        ("[!!int '1', !!float 1, !!bool true, !!null '', !!seq [], !!map {}]",
         [1, 1.0, True, None, [], {}]),
        ("a: |\n  x\n  y\nb: >\n  x\n  y\n", {"a": "x\ny\n", "b": "x y\n"}),
        ("1: a\ntrue: b\n~: c\n", {"1": "a", "true": "b", "~": "c"}),
        ("{a: 1, b: 2, a: 3}", {"a": 3, "b": 2}),
        ("a: &x {b: [1]}\nc: *x\n", {"a": {"b": [1]}, "c": {"b": [1]}}),
        ("- &k a\n- {*k : 1, &j b: *k}\n- *j", ["a", {"a": 1, "b": "a"}, "b"]),
        ("- &x 1\n- &x 2\n- *x", [1, 2, 2]),
        ('ä: "\\U0001F600"', {"ä": "\U0001f600"}),
    ],
)  # fmt: skip
def test_yaml(lua: Lua, text: str, expected: Any) -> None:
    result = lua.run("return slurm.to_json(slurm.from_yaml(text))", text)
    if lua.runtime.lua_version < (5, 3):  # 1.0 is 1 there
        expected = json.loads(json.dumps(expected), parse_float=whole)
    assert result.decode() == json.dumps(expected, ensure_ascii=False, separators=(",", ":"))


def whole(number: str) -> float:
    return int(float(number)) if float(number).is_integer() else float(number)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1,\nb: 2\n", "line "),
        ("a: 1\n b: 2\n", "line 2 column 3: "),
        ("--- 1\n--- 2\n", "line 2 column 1: a second document"),
        ("a: *b\n", "line 1 column 4: no anchor b"),
        ("a: &a [*a]\n", "line 1 column 8: a contains itself"),
        ("{[1]: 2}", "line 1 column 2: a key that is not a string"),
        ("{{a: b}: 2}", "line 1 column 2: a key that is not a string"),
        ("!!int x", "line 1 column 1: x is not of type int"),
        ("!!bool 1", "line 1 column 1: 1 is not of type bool"),
        ("!!binary YQ==", "line 1 column 1: the tag tag:yaml.org,2002:binary is not known"),
        (
            "!!python/object/apply:os.getcwd []",
            "line 1 column 1: the tag tag:yaml.org,2002:python",
        ),
        ("a: !include x", "line 1 column 4: the tag !include is not known"),
        ("!!set {a}", "line 1 column 1: the tag tag:yaml.org,2002:set is not known"),
        ("a: \0", ""),
        (b"\xff", "not UTF-8 at byte 1"),
    ],
)
def test_no_yaml(lua: Lua, text: str | bytes, message: str) -> None:
    ok, error = lua.run("return pcall(slurm.from_yaml, text)", text)
    assert not ok
    assert error.decode().startswith(f"slurm.from_yaml: {message}")


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 2_000, "a: {" * 2_000])
def test_too_deep(lua: Lua, text: str) -> None:
    """libyaml notices it before us, or behind, at another column."""
    assert "nested deeper than 1000 levels" in lua.error("slurm.from_yaml(text)", text)


def test_no_laughs(lua: Lua) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    assert "aliases for more than 100000 values" in lua.error(
        "slurm.from_yaml(text)", "\n".join(lines)
    )
    text = "- &a " + "x" * 1_000_000 + "\n" + "- *a\n" * 100
    assert "aliases for more than" in lua.error("slurm.from_yaml(text)", text)


def test_yaml_is_written_in_blocks(lua: Lua) -> None:
    code = "return slurm.to_yaml(slurm.from_json(text))"
    text = '{"b":[{"x":1,"y":null}],"a":{},"l":[],"long":"' + "word " * 50 + 'end"}'
    assert lua.run(code, text).decode() == (
        "b:\n- x: 1\n  y: null\na: {}\nl: []\nlong: " + "word " * 50 + "end\n"
    )


PLAIN = (
    "yes no on off ~ null true 1 0o17 010 0x1 1_0 1:30 1e3 .inf .nan = << - ? : # & * ! | > % @ ` "
    "2026-01-01 --- ..."
)
WORDS = st.sampled_from(PLAIN.split())
# what YAML can hold: not the halves of surrogate pairs
YAML_TEXT = WORDS | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(
    st.recursive(
        st.none() | st.booleans() | INTEGERS | FLOATS | YAML_TEXT,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(YAML_TEXT, inner, max_size=5),
        max_leaves=20,
    )
)
def test_any_yaml_is_kept(tree: Any) -> None:
    code = "return slurm.to_json(slurm.from_yaml(slurm.to_yaml(slurm.from_json(text))))"
    assert json.loads(SHARED["54"].run(code, json.dumps(tree))) == tree


def test_surrogates_are_not_for_yaml(lua: Lua) -> None:
    error = lua.error("slurm.to_yaml(slurm.from_json(text))", '"\\ud800"')
    assert "slurm.to_yaml: half of a surrogate pair" in error


@pytest.fixture
def pure(monkeypatch: pytest.MonkeyPatch) -> Lua:
    """A runtime beside a PyYAML that was built without libyaml."""
    importlib.import_module("scrun.supervisor.worker.documents_yaml")  # so that it comes back
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    monkeypatch.delattr(yaml, "CSafeDumper", raising=False)
    monkeypatch.delitem(sys.modules, "scrun.supervisor.worker.documents_yaml")
    return Lua("54")


def test_without_libyaml(pure: Lua) -> None:
    tree = {"z": 1, "a": [None, 1.5, True, {}, [], INFINITY], "words": PLAIN.split(), "l": "\0\n "}
    code = "return slurm.to_json(slurm.from_yaml(slurm.to_yaml(slurm.from_json(text))))"
    assert json.loads(pure.run(code, json.dumps(tree))) == tree
    assert pure.run(code, json.dumps("x " * 100)).decode() == json.dumps("x " * 100)
    for text in ("[" * 100_000, "- " * 2000):
        assert "nested deeper than 1000" in pure.error("slurm.from_yaml(text)", text)
    assert ": line 3 column 1: expected" in pure.error("slurm.from_yaml(text)", "a: [1,\nb: 2\n")
    assert "unacceptable character" in pure.error("slurm.from_yaml(text)", "a: \0")
    assert "half of a" in pure.error("slurm.to_yaml(text)", "\ud800")
    deep = "[" * 1000 + "]" * 1000
    assert pure.run(code, deep).decode() == deep


def test_without_pyyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("scrun.supervisor.worker.documents_yaml")
    monkeypatch.delitem(sys.modules, "scrun.supervisor.worker.documents_yaml")
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "slurm.from_yaml: yaml is not installed" in Lua("54").error("slurm.from_yaml(text)")


def test_imports_are_few() -> None:
    code = "import sys; import scrun.supervisor.worker.documents; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"yaml", "msgspec", "trio", "lupa", "dataclasses", "inspect", "logging", "asyncio"}
    assert not heavy & set(run.stdout.split())


def test_a_large_document() -> None:
    mount = {"destination": "/a/b", "type": "bind", "source": "/c", "options": ["ro"], "x": {}}
    text = json.dumps({"mounts": [{**mount, "n": i} for i in range(12_000)]})
    assert len(text) > 1_000_000
    code = "return slurm.to_json(slurm.from_json(text))"
    assert json.loads(SHARED["54"].run(code, text)) == json.loads(text)


def test_out_of_memory() -> None:
    runtime = importlib.import_module("lupa.lua54").LuaRuntime(
        encoding=None, unpack_returned_tuples=True, max_memory=10_000_000
    )
    decode = install(runtime).from_json
    pcall = runtime.globals()[b"pcall"]
    assert pcall(decode, b"[" + b"{}," * 500_000 + b"1]") == (
        False,
        b"slurm.from_json: not enough memory",
    )
