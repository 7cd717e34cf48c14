"""docs/howto/engines.md has a row for every command of podman and docker."""

import re
import shutil
import subprocess

import pytest

from tests.harness import documents

HEADINGS = ("command", "what", "there")
ROWS = [row for row in documents.rows("howto/engines.md") if row[0] not in HEADINGS]


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
    named = [name for _, names in ROWS for name in names]
    assert len(named) > 80
    assert documents.missing(named) == []


def test_every_row_has_a_test() -> None:
    assert [first for first, names in ROWS if not names] == []


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_every_command_has_a_row(engine: str) -> None:
    described = {
        command
        for first, _ in ROWS
        for command in re.findall(rf"`{engine} ([a-z-]+)[^`]*`", first)
    }
    assert commands(engine) - described == set()
