"""Build the client in C with the compiler that is there.

What the client knows of the command line is a header, made of the grammar's own table. An option
that it does not know, or that is marked as one for which it steps aside, is the Python program's.
"""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scrun.cli.grammar import COMMANDS, GLOBAL, Option, options_of
from scrun.core.version import VERSION

SOURCES = Path(__file__).parent
OPTIONS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", f'-DVERSION="{VERSION}"')

SERVED = ("create", "start", "state", "kill", "delete", "pause", "resume", "exec")
"""The commands that the client carries out, in the order of its `enum command`."""

ASIDE = frozenset(
    {
        *("help", "usage", "version"),  # whole texts
        "regex",  # several containers
        *("console-socket", "tty"),  # terminals
        "preserve-fds",
    }
)


def header() -> str:
    """Return the text of `table.h`."""
    lines = ["/* Made by scrun/native/build.py. */", *_options("GLOBAL", GLOBAL)]
    for name in SERVED:
        lines += _options(f"OF_{name.upper()}", options_of(name))
    lines.append("static const struct known KNOWN[] = {")
    for name in SERVED:
        operands = COMMANDS[name][1]
        open_ended = operands[-1].endswith("...]")
        # more ids than one are the Python program's
        most = sum(not word.endswith("]...") for word in operands)
        lines.append(f'\t{{"{name}", OF_{name.upper()}, {most}, {str(open_ended).lower()}}},')
    return "\n".join([*lines, "};", ""])


def _options(name: str, options: tuple[Option, ...]) -> list[str]:
    lines = [f"static const struct option {name}[] = {{"]
    for long, letters, metavar, used, _, _ in options:
        value = "NULL" if metavar is None else f'"{metavar if used else metavar.strip("|")}"'
        if metavar is not None and not used and "|" in metavar and metavar[0] != "[":
            value = '"VALUE"'  # of what is ignored any value is right
        aside = str(long in ASIDE).lower()
        lines.append(f'\t{{"{long}", "{letters}", {value}, {aside}}},')
    return [*lines, "\t{NULL, NULL, NULL, false},", "};"]


def compilers() -> list[str]:
    """Return the compilers to try, the one that Python was built with among them."""
    named = [os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    found = [(name or "").split()[:1] for name in named]
    return [*dict.fromkeys(words[0] for words in found if words and shutil.which(words[0]))]


def build(program: Path, options: Sequence[str] = ("-Os", "-s")) -> str:
    """Build it, statically if possible (half the start); return why not, or ""."""
    reason = "no C compiler was found"
    with tempfile.TemporaryDirectory() as place:
        Path(place, "table.h").write_text(header())
        for compiler in compilers():
            for linked in (["-static"], []):
                command = [compiler, *OPTIONS, *options, *linked, "-I", place, "-I", str(SOURCES)]
                command += [*map(str, sorted(SOURCES.glob("*.c"))), "-o", f"{place}/scrun"]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                # a compiler for another machine may be first in PATH
                if not done.returncode and _runs(Path(place, "scrun")):
                    shutil.copy(Path(place, "scrun"), program)
                    return ""
                said = [line for line in done.stderr.splitlines() if "error" in line]
                reason = said[0] if said else f"{compiler}: what it built does not run"
    return reason


def _runs(program: Path) -> bool:
    """Tell whether the client runs here: alone, it says that its packages are missing."""
    try:
        done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=10)
    except OSError:
        return False
    return "its packages are not in" in done.stderr
