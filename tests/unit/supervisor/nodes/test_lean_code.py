"""Compiled modules are made small and do the same."""

import os
from types import CodeType

import pytest

import scrun.supervisor.shim
from scrun.supervisor.nodes.lean_code import lean

FOLDER = scrun.supervisor.shim.__path__[0]
FILES = sorted(file for file in os.listdir(FOLDER) if file.endswith(".py"))
TEXT = '''
"""Of the module."""
first = "not a docstring"


class Thing:
    """Of a class."""

    def method(self):
        """Of a method."""
        return "constant", self.method.__doc__

    def same(self):
        """Both."""
        return ["Both.", self.bare]

    def bare(self):
        return "first constant", self.bare.__doc__


function = lambda: "of a lambda"
pairs = [("in a comprehension", x) for x in (1, 2)]
far = (1,
''' + (
    "\n" * 300 + "2)\n\n\ndef fails(\n    x,\n):\n    return [\n        x\n        / 0\n    ]\n"
)


def compiled(text: str, name: str) -> CodeType:
    return compile(text, name, "exec", dont_inherit=True)


def inner(code: CodeType) -> list[CodeType]:
    found = [code]
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found += inner(const)
    return found


def by_instruction(code: CodeType) -> list[int | None]:
    return [line for line, *_ in code.co_positions()]


@pytest.mark.parametrize("file", [*FILES, ""])
def test_the_lines_are_the_same_and_the_columns_are_gone(file: str) -> None:
    text = TEXT
    if file:
        with open(os.path.join(FOLDER, file), encoding="utf-8") as source:
            text = source.read()
    code = compiled(text, file)
    for one, other in zip(inner(code), inner(lean(code)), strict=True):
        assert by_instruction(other) == by_instruction(one)
        assert {place[2:] for place in other.co_positions()} <= {(None, None)}
        assert other.co_code == one.co_code


def test_only_docstrings_of_functions_are_gone() -> None:
    names: dict[str, object] = {"__name__": "lean"}
    exec(lean(compiled(TEXT, "text")), names)  # what it does is the test
    thing = names["Thing"]
    assert isinstance(thing, type)
    assert thing.__doc__ == "Of a class."
    assert thing().method() == ("constant", None)
    assert thing().same()[0] == "Both."
    assert thing().bare() == ("first constant", None)
    function = names["function"]
    assert callable(function)
    assert function() == "of a lambda"
    assert names["pairs"] == [("in a comprehension", 1), ("in a comprehension", 2)]


def test_a_traceback_names_the_line() -> None:
    names: dict[str, object] = {"__name__": "lean"}
    exec(lean(compiled(TEXT, "text")), names)
    fails = names["fails"]
    assert callable(fails)
    with pytest.raises(ZeroDivisionError) as caught:
        fails(1)
    assert TEXT.splitlines()[caught.traceback[-1].lineno].strip() in ("x", "/ 0")
