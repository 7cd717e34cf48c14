"""A Lua runtime whose script can neither reach Python nor break it.

Lua reports a lack of memory by longjmp(3). If that passes a frame of lupa, the interpreter lock is
never released, and the process hangs. So the limit of memory applies only while the script's code
runs; a value above the limit exists for a moment, and the next allocation fails.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, NoReturn

from scrun.supervisor.worker.modules import cpath, library_directory, path

if TYPE_CHECKING:
    from collections.abc import Callable

Value = Any  # lupa has no types

# Converts Python exceptions, which are Python objects, to strings for the script.
_GUARD = b"""
local room, limit = ...
local pcall, tostring, error = pcall, tostring, error
return function(call)
    return function(...)
        room()
        local done, first, second, third = pcall(call, ...)
        limit()
        if done then
            return first, second, third
        end
        error("internal error: " .. tostring(first), 0)
    end
end
"""


class LuaRuntime:
    """A runtime of one of the versions of Lua, "5.1" to "5.5"."""

    def __init__(self, version: str, memory: int) -> None:
        """`memory` limits a script's memory, in bytes."""
        self._lupa, self.version = _lupa(version), version
        self._memory = memory
        self._depth = 1  # the number of scrun's own frames on the stack
        self.lua: Value = self._lupa.LuaRuntime(
            encoding=None,
            source_encoding="utf-8",
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=True,
            attribute_filter=_nothing,
            max_memory=memory,
        )
        self.lua.set_max_memory(0)
        self._find_modules()
        self._guard = self.lua.execute(_GUARD, self.room, self.limit)

    def room(self) -> None:
        """Lift the limit: scrun's own code begins."""
        self._depth += 1
        self.lua.set_max_memory(0)

    def limit(self) -> None:
        """Set the limit again: the script's code continues."""
        self._depth -= 1
        if not self._depth:
            self.lua.set_max_memory(self._memory)

    def execute(self, code: bytes, /, *arguments: object) -> Value:
        """Run a chunk of scrun's; functions among its arguments become Lua functions."""
        return self.lua.execute(code, *map(self._given, arguments))

    def table(self, members: dict[str, object]) -> Value:
        """Make a table with string keys; functions in it become Lua functions."""
        given = {name.encode(): self._given(member) for name, member in members.items()}
        return self.lua.table_from(given)

    def function(self, call: Callable[..., object]) -> Value:
        return self._guard(call)

    def type_name(self, value: Value) -> str:
        names = {bool: "boolean", int: "number", float: "number", bytes: "string"}
        return names.get(type(value)) or str(self._lupa.lua_type(value))

    def _find_modules(self) -> None:
        version = self.version
        package = self.lua.globals()[b"package"]
        built_in, built_in_c = (os.fsdecode(package[name]) for name in (b"path", b"cpath"))
        package[b"path"] = os.fsencode(path(built_in, version, os.environ))
        libraries = library_directory()
        package[b"cpath"] = os.fsencode(cpath(built_in_c, version, os.environ, libraries))

    def _given(self, value: object) -> object:
        is_ours = callable(value) and self._lupa.lua_type(value) is None
        return self._guard(value) if is_ours else value


def _lupa(version: str) -> Value:
    """Import one of lupa's Lua versions, with its symbols visible to modules in C."""
    lupa = importlib.import_module("lupa")
    with lupa.allow_lua_module_loading():
        return importlib.import_module("lupa.lua" + version.replace(".", ""))


def _nothing(owner: object, name: object, setting: bool) -> NoReturn:
    raise AttributeError("no way to Python")
