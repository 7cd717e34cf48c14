"""docs/howto/engines.md has a row for every command of podman and docker."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "engines.md"


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


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_every_command_has_a_row(engine: str) -> None:
    rows = [line.split(" | ")[0] for line in PAGE.read_text().splitlines() if line[:2] == "| "]
    described = set(re.findall(rf"`{engine} ([a-z-]+)[^`]*`", " ".join(rows)))
    assert commands(engine) - described == set()
