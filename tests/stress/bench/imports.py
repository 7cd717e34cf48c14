"""What the imports of each kind of process cost, by module."""

import re
from collections.abc import Sequence
from pathlib import Path

from tests.harness.program import run_program
from tests.stress.bench.figures import table

_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|(\s+)(\S+)")
_LEAST_US = 1000
_SUPERVISOR = """
from scrun.supervisor.__main__ import _IN_VAIN
from scrun.supervisor.core.later import postpone
postpone(*filter(sys.stdlib_module_names.__contains__, _IN_VAIN), packages=("idna",))
import scrun.supervisor.daemon.server
"""


def imports(interpreter: str, packages: Path) -> str:
    """Return a table: the modules that cost most, for each kind of process.

    Args:
        interpreter: The python3 that has scrun.
        packages: Where scrun is installed.
    """
    path = f"import sys; sys.path.insert(0, {str(packages)!r}); "
    kinds: Sequence[tuple[str, Sequence[str], str]] = (
        ("a command (`state`)", ("-I", "-S"), "import scrun.main, scrun.settings.file.sources"),
        ("`create` that finds a supervisor", ("-I", "-S"), "import scrun.commands.create"),
        ("the supervisor", ("-I",), _SUPERVISOR),
        ("a script's worker", ("-I",), "import scrun.supervisor.worker.main"),
    )  # fmt: skip
    rows = []
    for kind, options, statement in kinds:
        done = run_program(
            [interpreter, *options, "-X", "importtime", "-c", path + statement], check=True
        )
        found = [
            (int(own), int(total), name, len(indent) == 1)
            for own, total, indent, name in _LINE.findall(done.stderr)
        ]
        ours = found[[name for _, _, name, _ in found].index("site") + 1 :] if (
            "site" in [name for _, _, name, _ in found]
        ) else found  # fmt: skip
        packages_cost: dict[str, int] = {}
        for own, _, name, _ in ours:
            top = name.partition(".")[0]
            packages_cost[top] = packages_cost.get(top, 0) + own
        total = sum(packages_cost.values())
        rows.append([f"**{kind}**", len(ours), f"{total / 1e3:.1f}"])
        for top, cost in sorted(packages_cost.items(), key=lambda pair: -pair[1]):
            if cost >= _LEAST_US:
                rows.append([top, "", f"{cost / 1e3:.1f}"])
    return table(["imported by", "modules", "ms"], rows)
