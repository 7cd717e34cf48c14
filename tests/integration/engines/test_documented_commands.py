"""The page about engines has a row for every command of theirs."""

import re
import shutil

import pytest

from tests import CHECKOUT
from tests.harness.program import run_program

PAGE = CHECKOUT / "docs" / "howto" / "engines.md"


def commands(engine: str) -> set[str]:
    """The commands that an engine's help lists."""
    # Debian's own before one that somebody put in front of it: its version is the document's
    program = shutil.which(engine, path="/usr/bin:/bin")
    assert program is not None, f"{engine} is missing: tools/setup --test"
    done = run_program([program, "--help"], check=True)
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


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_every_command_of_the_engine_has_a_row(engine: str) -> None:
    described = {
        command
        for row in re.findall(r"^\| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
        for command in re.findall(rf"`{engine} ([a-z-]+)[^`]*`", row)
    }
    assert commands(engine) - described == set()
