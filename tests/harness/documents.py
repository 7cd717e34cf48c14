"""Documents that name the tests which show what they say: `tests/PATH::FUNCTION` in a table."""

import ast
import re
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[2]
Row = tuple[str, list[str]]


def rows(document: str) -> list[Row]:
    """The first cell of every row of its tables, and the tests that the others name."""
    lines = (PROJECT / "docs" / document).read_text().splitlines()
    cells = [line.strip("| ").partition(" | ") for line in lines if line.startswith("| ")]
    return [(first, named_tests(rest)) for first, _, rest in cells]


def named_tests(text: str) -> list[str]:
    """The tests that a text names."""
    return re.findall(r"`(tests/[^`]+)`", text)


@cache
def functions(path: str) -> set[str]:
    """The test functions of a file."""
    tree = ast.parse((PROJECT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def missing(names: list[str]) -> list[str]:
    """Those tests that are not there; one without a function has to be a file."""
    found = [name.partition("::") for name in names]
    return [
        f"{path}::{function}"
        for path, _, function in found
        if not (PROJECT / path).is_file() or (function and function not in functions(path))
    ]
