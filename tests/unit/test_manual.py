"""docs/manual.md names tests that exist, for every section of the manual page."""

import ast
import re
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SECTIONS = (
    "SYNOPSIS", "DESCRIPTION", "RETURN VALUE", "GLOBAL OPTIONS", "CREATE OPTIONS",
    "DELETE OPTIONS", "INPUT ENVIRONMENT VARIABLES", "OUTPUT ENVIRONMENT VARIABLES",
    "JOB ENVIRONMENT VARIABLES", "scrun.lua", "EXAMPLE", "SIGNALS",
)  # fmt: skip


def rows() -> list[tuple[str, list[str]]]:
    """What is promised, and the tests that hold it."""
    lines = (PROJECT / "docs" / "manual.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [(first, re.findall(r"`(tests/[^`]+)`", rest)) for first, rest in cells]


@cache
def functions(path: str) -> set[str]:
    """The test functions of a file."""
    tree = ast.parse((PROJECT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def test_every_test_that_is_named_is_there() -> None:
    named = [name for _, names in rows() for name in names]
    assert len(named) > 60
    missing = [
        name
        for name in named
        for path, _, function in [name.partition("::")]
        if function not in functions(path)
    ]
    assert missing == []


def test_every_row_has_a_test() -> None:
    headings = ("section", "there")
    assert [first for first, names in rows() if not names and first not in headings] == []


def test_every_section_of_the_manual_has_a_row() -> None:
    firsts = [first for first, _ in rows()]
    assert [
        section for section in SECTIONS if not any(f.startswith(section) for f in firsts)
    ] == []
