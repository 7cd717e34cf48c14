"""docs/engines.md has a row for every command of podman and docker, and names tests that exist."""

import ast
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
HEADINGS = ("command", "what", "there")
Row = tuple[str, list[str]]


def rows() -> list[Row]:
    """The first cell of every row, and the tests that it names."""
    lines = (PROJECT / "docs" / "engines.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    found = [(cell[0], re.findall(r"`(tests/[^`]+)`", cell[-1])) for cell in cells]
    return [row for row in found if row[0] not in HEADINGS]


@cache
def functions(path: str) -> set[str]:
    """The test functions of a file."""
    tree = ast.parse((PROJECT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def commands(engine: str) -> set[str]:
    """The commands that an engine's help lists."""
    # Debian's own before one that somebody put in front of it: its version is the document's
    program = shutil.which(engine, path="/usr/bin:/bin")
    if program is None:
        pytest.skip(f"{engine} is not installed")
    done = subprocess.run(
        [program, "--help"], check=True, capture_output=True, text=True, timeout=20
    )
    listed: set[str] = set()
    inside = False
    for line in done.stdout.splitlines():
        if line.endswith("ommands:"):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        elif inside and (match := re.match(r" +([a-z][a-z-]*)\*? ", line)):
            listed.add(match[1])
    assert len(listed) > 40
    return listed


def test_every_test_that_is_named_is_there() -> None:
    named = [name for _, names in rows() for name in names]
    assert len(named) > 80
    assert [
        name
        for name in named
        for path, _, function in [name.partition("::")]
        if function not in functions(path)
    ] == []


def test_every_row_has_a_test() -> None:
    assert [first for first, names in rows() if not names] == []


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_every_command_has_a_row(engine: str) -> None:
    described = {
        command
        for first, _ in rows()
        for command in re.findall(rf"`{engine} ([a-z-]+)[^`]*`", first)
    }
    assert commands(engine) - described == set()
