"""Build the client in C with the compiler that is there."""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scrun.core.version import VERSION
from scrun.native.table import header

SOURCES = Path(__file__).parent
OPTIONS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", f'-DVERSION="{VERSION}"')


def compilers() -> list[str]:
    """Return the compilers to try, the one that Python was built with among them."""
    named = [os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    found = [(name or "").split()[:1] for name in named]
    return [*dict.fromkeys(words[0] for words in found if words and shutil.which(words[0]))]


def build(program: Path, options: Sequence[str] = ("-Os", "-s")) -> str:
    """Build it; statically linked where that works, since it starts in half the time.

    Args:
        program: Where it goes.
        options: More options of the compiler.

    Returns:
        Why that is not possible, or "".
    """
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
