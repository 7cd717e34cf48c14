"""JSON and YAML for Lua scripts: the module `json`, slurm.from_json and similar functions.

As in Slurm, the functions raise errors as strings: an exception would give a script a Python
object. Each is a Lua function around a Python function that does not raise.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from scrun.supervisor.worker.values import Executes, LuaValue, Tree, Values, ValuesError, room

if TYPE_CHECKING:
    from collections.abc import Callable

_FUNCTION = b"""
local call, error = ..., error
return function(value)
    local ok, result = call(value)
    if not ok then
        error(result, 2)
    end
    return result
end
"""

# A site's json.lua takes precedence, but not one in a directory of the built-in path, such as
# Debian's lua-json, whose arrays, nulls and integers differ; nor one in ./, the working directory
# of whoever called create. So this searcher comes before Lua's, and searches only the entries that
# LUA_PATH or the script itself added.
_MODULE = b"""
local module = ...
local package, open, close, loadfile = package, io.open, io.close, loadfile
local error, type, gmatch, gsub = error, type, string.gmatch, string.gsub

local builtin = {}
for entry in gmatch(package.path, "[^;]+") do
    builtin[entry] = true
end
local version = gsub(gsub(_VERSION, "Lua ", ""), "%.", "_")
local variable = os.getenv("LUA_PATH_" .. version) or os.getenv("LUA_PATH") or ""
for entry in gmatch(variable, "[^;]+") do
    builtin[entry] = nil
end

local function search(name)
    if name ~= "json" then
        return nil
    end
    local path = package.path
    for entry in gmatch(type(path) == "string" and path or "", "[^;]+") do
        local file = gsub(entry, "%?", name)
        local handle = not builtin[entry] and open(file, "r")
        if handle then
            close(handle)
            local loader, problem = loadfile(file)
            if not loader then
                error(problem, 0)
            end
            return loader, file
        end
    end
    return function() return module end, "scrun"
end

table.insert(package.searchers or package.loaders, 2, search)
"""


class Documents(NamedTuple):
    """Lua functions for the table `slurm`, and nothing else: a script sees all of it."""

    from_json: LuaValue
    to_json: LuaValue
    from_yaml: LuaValue
    to_yaml: LuaValue


class DocumentError(Exception):
    """A text is not valid JSON or YAML. The script gets the message as a string."""


def install(runtime: Executes, values: Values | None = None) -> Documents:
    """Make the functions for a runtime, and provide the module for its `require 'json'`.

    Call this once, before a script can change package.path. The runtime has `encoding=None` and
    `unpack_returned_tuples=True`.
    """
    converter = Values(runtime) if values is None else values

    def reader(name: str, parse: Callable[[str], Tree]) -> LuaValue:
        def read(text: LuaValue) -> LuaValue:
            if not isinstance(text, bytes):
                raise DocumentError(f"a string is needed, not a {converter.type_name(text)}")
            with room():
                tree = parse(_decode(text))
            return converter.to_lua(tree)

        return _function(runtime, name, read)

    def writer(name: str, render: Callable[[Tree], bytes]) -> LuaValue:
        def write(value: LuaValue) -> bytes:
            if value is None:
                # more often a misspelt name than a request for the document null
                raise DocumentError("a value is needed, not nil; null is json.null")
            tree = converter.to_python(value)
            with room():
                return render(tree)

        return _function(runtime, name, write)

    members: dict[bytes, LuaValue] = {
        b"decode": reader("json.decode", parse_json),
        b"encode": writer("json.encode", render_json),
        b"null": converter.null,
        b"array": converter.mark_array,
        b"object": converter.mark_object,
    }
    module = runtime.execute(b"return {}")
    for name, member in members.items():
        module[name] = member
    runtime.execute(_MODULE, module)
    return Documents(
        from_json=reader("slurm.from_json", parse_json),
        to_json=writer("slurm.to_json", render_json),
        from_yaml=reader("slurm.from_yaml", _parse_yaml),
        to_yaml=writer("slurm.to_yaml", _render_yaml),
    )


def parse_json(text: str) -> Tree:
    """Parse JSON."""
    try:
        tree: Tree = json.loads(text.removeprefix("\ufeff"), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise DocumentError(f"{where}: {error.msg}") from None
    return tree


def render_json(tree: Tree) -> bytes:
    """Write JSON, without needless blanks.

    Half of a surrogate pair, which JSON can hold and UTF-8 cannot, is written as an escape:
    backslashreplace gives JSON's own form.
    """
    text = json.dumps(
        tree, ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
    )
    return text.encode("utf-8", "backslashreplace")


def _no_constant(name: str) -> Tree:
    raise DocumentError(f"{name} is not JSON")


def _parse_yaml(text: str) -> Tree:
    # imported here: few scripts need it, and yaml takes 10 ms
    from scrun.supervisor.worker.documents_yaml import parse_yaml

    return parse_yaml(text)


def _render_yaml(tree: Tree) -> bytes:
    from scrun.supervisor.worker.documents_yaml import render_yaml

    return render_yaml(tree)


def _decode(text: bytes) -> str:
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 at byte {error.start + 1}") from None


def _function(runtime: Executes, name: str, work: Callable[[LuaValue], LuaValue]) -> LuaValue:
    """Wrap a Python function that raises exceptions in a Lua function that raises strings."""

    def call(value: LuaValue) -> tuple[bool, LuaValue]:
        try:
            return True, work(value)
        except (DocumentError, ValuesError) as error:
            problem = str(error)
        except RecursionError:
            problem = "nested too deeply"
        except MemoryError:  # Lua's limit too
            problem = "not enough memory"
        except ImportError as error:
            problem = f"{error.name} is not installed"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        return False, f"{name}: {problem}".encode("utf-8", "backslashreplace")

    return runtime.execute(_FUNCTION, call)
