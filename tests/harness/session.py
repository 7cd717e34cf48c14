"""Terminal sessions of the documentation: `console` blocks of commands and what they print."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.program import run_program
from tests.harness.users import User

_END = "\x1e"


@dataclass
class Step:
    """A command, and the lines that it prints."""

    command: str
    output: list[str] = field(default_factory=list)


def steps(page: Path) -> list[Step]:
    """The commands of a page's sessions, in order; those that set scrun up come first."""
    found: list[Step] = []
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for block in sorted(blocks, key=lambda block: "tools/setup" not in block):
        found += steps_of(block)
    return found


def steps_of(block: str, prompt: str = "$ ") -> list[Step]:
    """The commands of one session, in order."""
    found: list[Step] = []
    for line in block.splitlines():
        if line.startswith(prompt):
            found.append(Step(line.removeprefix(prompt)))
        elif found[-1].command.endswith("\\"):
            found[-1].command += "\n" + line
        else:
            found[-1].output.append(line)
    return found


def play(
    given: list[Step], user: User, environment: dict[str, str], directory: Path
) -> list[tuple[str, str]]:
    """Run them in one shell; return for each what it printed, and its exit status."""
    script = "".join(f"{step.command}\nprintf '{_END}%s{_END}' $?\n" for step in given)
    done = run_program(
        [*user.prefix, "bash", "-c", script],
        env=environment,
        cwd=directory,
        stderr=subprocess.STDOUT,
        timeout=100,
    )
    parts = done.stdout.split(_END)
    return list(zip(parts[:-1:2], parts[1::2], strict=True))


def agrees(shown: list[str], printed: str) -> bool:
    """Whether a page shows what a command printed, or leaves all of it out.

    Numbers and spaces may differ, words may be left out of a line, and a line with `…` may be
    anything.
    """
    lines = printed.splitlines()
    return not shown or (len(lines) == len(shown) and all(map(_agrees, shown, lines)))


def _agrees(shown: str, printed: str) -> bool:
    words = iter(re.sub(r"\d+", "0", printed).split())
    return "…" in shown or all(word in words for word in re.sub(r"\d+", "0", shown).split())
