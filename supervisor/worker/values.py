"""Converts Python trees (the result of `json.loads`) to Lua tables, and back.

A script reads a config.json, changes some members and writes it. What it did not touch must stay
the same, but a plain Lua table loses whether an empty table is a list, the order of members, null,
and integers of more than 64 bits. The metatables store these. They have no metamethods for tables
of a document, so `pairs`, `#` and `table.insert` work as on any table.

This runs in the script's process, with one LuaRuntime of any version with `encoding=None`. Values
for a script contain no Python objects.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LuaValue: TypeAlias = Any  # lupa has no types: None, bool, int, float, bytes or one of its proxies
Tree: TypeAlias = "bool | int | float | str | bytes | list[Tree] | dict[str, Tree] | None"
Number: TypeAlias = "int | float"

MAX_DEPTH = 1000

_LUA = os.path.join(os.path.dirname(__file__), "values.lua")

# Arguments of one call into Lua; a C function of 5.1 has at most 8000 slots on its stack.
_ARGUMENTS = 200

_OPERATIONS: dict[bytes, Callable[[Any, Any], Number | bool]] = {
    b"add": operator.add,
    b"sub": operator.sub,
    b"mul": operator.mul,
    b"div": operator.truediv,
    b"mod": operator.mod,
    b"idiv": operator.floordiv,
    b"pow": math.pow,  # as in Lua, always with floats: no huge results
    b"lt": operator.lt,
    b"le": operator.le,
}


class Executes(Protocol):
    """The part of lupa.luaXX.LuaRuntime that is used."""

    def execute(self, lua_code: bytes, /, *args: object) -> LuaValue:
        """Run a chunk with arguments."""


class ValuesError(Exception):
    """A value, at the end of `steps`, has no counterpart in the other language.

    The script gets the message as a string. Indices are from 1.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.steps: list[bytes | int] = []

    def __str__(self) -> str:
        path = ""
        for step in self.steps[:8]:
            if isinstance(step, int):
                path += f"[{step}]"
            elif step.replace(b"_", b"a").isalnum() and not step[:1].isdigit():
                path += f".{step.decode()}" if path else step.decode()
            else:
                path += f'["{step.decode("utf-8", "backslashreplace")}"]'
        path += "..." if len(self.steps) > 8 else ""
        return f"{path}: {self.args[0]}" if path else str(self.args[0])


class _Shape(NamedTuple):
    """The shape of an array or an object of a document.

    Attributes:
        members: The names of an object's members in their order, with the shape of tables.
        element: The shape that all elements of an array had, or None.
    """

    is_array: bool
    members: dict[bytes, int | None]
    element: int | None


_ARRAY, _OBJECT = 0, 1  # the shapes without further information


@contextmanager
def room() -> Iterator[None]:
    """Allow recursion of MAX_DEPTH levels, here and in json and yaml.

    A level takes up to 5 frames (yaml's representer); the default limit is 1000 frames.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 6 * MAX_DEPTH)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class Values:
    """Converts values for one Lua runtime. There is one per runtime, which owns its null.

    Attributes:
        null: The value for null in Lua: true, and equal only to itself.
        mark_array: A Lua function that marks a table as an array, in case it is empty.
        mark_object: A Lua function that marks a table as an object.
    """

    def __init__(self, runtime: Executes) -> None:
        self._shapes = [_Shape(True, {}, None), _Shape(False, {}, None)]
        self._ids: dict[object, int] = {}
        with open(_LUA, "rb") as file:
            lua = runtime.execute(file.read(), self._compute)
        self.null: LuaValue = lua[b"null"]
        self.mark_array: LuaValue = lua[b"mark_array"]
        self.mark_object: LuaValue = lua[b"mark_object"]
        self._array = lua[b"array"]
        self._object = lua[b"object"]
        self._integer = lua[b"integer"]
        self._reset = lua[b"reset"]
        self._enter = lua[b"enter"]
        self._leave = lua[b"leave"]
        self._type_name = lua[b"type"]
        self._table_type: type = type(lua)
        self._least: int = lua[b"least"]
        self._most: int = lua[b"most"]

    def to_lua(self, tree: Tree) -> LuaValue:
        """Convert a tree as of `json.loads` to a Lua value.

        Bytes become strings too: a path need not be UTF-8. A list that occurs twice becomes two
        tables. ValuesError if it is nested too deeply, or has a value of another type.
        """
        with room():
            return self._give(tree, 0)[0]

    def to_python(self, value: LuaValue) -> Tree:
        """Convert a Lua value to a tree, reading tables without their metamethods.

        An empty table without a shape has the type that was at its place in the document. If there
        was none, it is an array: scripts reset lists (`config.mounts = {}`), and can use
        `json.object` otherwise. For any other table the content decides.

        Raises:
            ValuesError: Something in it has no counterpart in JSON.
        """
        self._reset()
        with room():
            return self._take(value, None, 0)

    def type_name(self, value: LuaValue) -> str:
        return str(self._type_name(value), "ascii")

    # -- to Lua -------------------------------------------------------------------------------

    def _give(self, tree: Tree, depth: int) -> tuple[LuaValue, int | None]:
        if isinstance(tree, str):
            return tree.encode("utf-8", "surrogatepass"), None
        if tree is None:
            return self.null, None
        if isinstance(tree, int) and not self._least <= tree <= self._most:
            return self._integer(str(tree).encode()), None
        if isinstance(tree, (bool, int, float, bytes)):
            return tree, None
        if depth == MAX_DEPTH:
            raise ValuesError(f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(tree, dict):
            return self._give_object(tree, depth + 1)
        if isinstance(tree, (list, tuple)):
            return self._give_array(tree, depth + 1)
        raise ValuesError(f"a Python {type(tree).__name__} has no counterpart in Lua")

    def _give_array(self, tree: list[Tree], depth: int) -> tuple[LuaValue, int]:
        given = [self._give(element, depth) for element in tree]
        known = {shape for _, shape in given}
        if len(known) > 1 and None not in known:
            # different shapes, but perhaps all arrays or all objects
            known = {_ARRAY if self._shapes[shape or 0].is_array else _OBJECT for shape in known}
        element = known.pop() if len(known) == 1 else None
        shape = self._shape(_Shape(True, {}, element), element)
        table = None
        for start in range(0, len(given) or 1, _ARGUMENTS):
            values = [value for value, _ in given[start : start + _ARGUMENTS]]
            table = self._array(table, shape, start, *values)
        return table, shape

    def _give_object(self, tree: dict[str, Tree], depth: int) -> tuple[LuaValue, int]:
        members: dict[bytes, int | None] = {}
        flat: list[LuaValue] = []
        for key, member in tree.items():
            name = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
            value, members[name] = self._give(member, depth)
            flat += name, value
        shape = self._shape(_Shape(False, members, None), tuple(members.items()))
        table = None
        for start in range(0, len(flat) or 1, _ARGUMENTS):
            table = self._object(table, shape, *flat[start : start + _ARGUMENTS])
        return table, shape

    def _shape(self, shape: _Shape, key: object) -> int:
        """Return the number of a shape; equal shapes, as of many mounts, share it."""
        if not shape.members and shape.element is None:
            return _ARRAY if shape.is_array else _OBJECT
        number = self._ids.setdefault(key, len(self._shapes))
        if number == len(self._shapes):
            self._shapes.append(shape)
        return number

    # -- to Python ----------------------------------------------------------------------------

    def _take(self, value: LuaValue, expected: int | None, depth: int) -> Tree:
        """Convert a value; `expected` is the shape that was at its place in the document."""
        if isinstance(value, bytes):
            return _text(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValuesError(f"{value} is not a number of JSON")
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if not isinstance(value, self._table_type):
            raise ValuesError(f"a {self.type_name(value)} has no counterpart in JSON")
        known = self._enter(value)
        if isinstance(known, bytes):
            return _special(known)
        if depth == MAX_DEPTH:
            raise ValuesError(f"nested deeper than {MAX_DEPTH} levels")
        tree = self._take_table(value, expected if known is None else known, depth + 1)
        self._leave(value)
        return tree

    def _take_table(self, table: LuaValue, known: int | None, depth: int) -> Tree:
        pairs = list(table.items())
        is_array = _is_array([key for key, _ in pairs]) if pairs else None
        items: dict[LuaValue, LuaValue] = dict(pairs)
        # the number comes from the metatable, which a script can change
        valid = isinstance(known, int) and 0 <= known < len(self._shapes)
        shape = self._shapes[known if valid and known is not None else _ARRAY]
        if is_array is None:
            is_array = shape.is_array
        elif is_array != shape.is_array:
            # the script changed its type: the content counts, not the old shape
            shape = self._shapes[_ARRAY if is_array else _OBJECT]
        if is_array:
            steps = range(1, len(items) + 1)
            return [self._take_member(items, step, shape.element, depth) for step in steps]
        return {
            _text(name): self._take_member(items, name, shape.members.get(name), depth)
            for name in _in_order(items, shape.members)
        }

    def _take_member(
        self, items: dict[LuaValue, LuaValue], step: bytes | int, expected: int | None, depth: int
    ) -> Tree:
        try:
            return self._take(items[step], expected, depth)
        except ValuesError as error:
            error.steps.insert(0, step)
            raise

    # -- integers that do not fit into Lua numbers ----------------------------------------------

    def _compute(self, operation: bytes, left: LuaValue, right: LuaValue) -> tuple[bool, LuaValue]:
        """Compute for the metamethods of large integers, which raise the error if it fails."""
        try:
            result = _OPERATIONS[operation](self._number(left), self._number(right))
            return True, self._give(result, 0)[0]
        except Exception as error:  # an exception would be a Python object in the script's hands
            return False, str(error).encode("utf-8", "backslashreplace")

    def _number(self, value: LuaValue) -> Number:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        if isinstance(value, self._table_type):
            self._reset()
            known = self._enter(value)
            number = _special(known) if isinstance(known, bytes) else None
            if isinstance(number, int):
                return number
        raise ValuesError(f"attempt to compute with a {self.type_name(value)}")


def _special(known: bytes) -> int | None:
    """Return the value of a special table, from the answer of `enter`."""
    if known == b"null":
        return None
    if known == b"cycle":
        raise ValuesError("a table that contains itself")
    try:
        return int(known)
    except ValueError:
        raise ValuesError("a large integer that was written to") from None


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise ValuesError(f"a string that is not UTF-8, at its byte {error.start + 1}") from None


def _is_array(keys: list[LuaValue]) -> bool:
    """Return whether keys are those of an array (1 to n) or an object (strings); refuse others."""
    types = {type(key) for key in keys}
    if types == {bytes}:
        return False
    if types == {int}:
        missing = set(range(1, len(keys) + 1)).difference(keys)
        if missing:
            raise ValuesError(f"a list without its element {min(missing)}")
        return True
    if types == {bytes, int}:
        raise ValuesError("a table with both names and indices")
    raise ValuesError("a table with keys that are neither names nor indices")


def _in_order(items: dict[bytes, LuaValue], members: dict[bytes, int | None]) -> list[bytes]:
    """Return names in the order of the document; new ones follow, sorted: tables have no order."""
    return [name for name in members if name in items] + sorted(items.keys() - members.keys())
