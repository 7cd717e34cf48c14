"""What of a `create` is whose: its parts, each measured by itself in the same rounds."""

from tests.stress.bench.figures import table
from tests.stress.bench.operations import SALLOC, TRIO
from tests.stress.bench.stand import BARE, INTERPRETER, Stand

COMMAND = "an interpreter with `create`'s modules, without its end"
LIBRARIES = "an interpreter with trio, msgspec and python-daemon, without its end"
MODULES = "the same with the supervisor's own modules too"
_NOTHING = ("--engine", "none", "--stager", "none")
_OWN = "scrun create, engine and stager none"
_CREATE = "scrun create"
_FIRST = "scrun create, the first"


class Floors:
    """The measurements of a round."""

    def __init__(self, stand: Stand, interpreter: str, packages: str) -> None:
        """Make ready.

        Args:
            stand: Where.
            interpreter: The python3 that has trio.
            packages: Where scrun is installed.
        """
        self._stand = stand
        self._interpreter = interpreter
        self._packages = packages

    def warm_up(self) -> None:
        """Start the supervisor, fill the caches, and forget what was measured elsewhere."""
        self.round()
        self._stand.times.taken.clear()

    def round(self) -> None:
        stand, scrun = self._stand, self._stand.site.command
        stand.take(BARE, *INTERPRETER)
        stand.take(TRIO, self._interpreter, "-I", "-c", "import trio")
        self._import(COMMAND, "scrun.commands.create, scrun.settings.file.sources")
        libraries = "trio, msgspec, daemon"
        self._import(LIBRARIES, libraries)
        own = ", ".join(
            f"scrun.supervisor.{name}"
            for name in ("daemon.server", "engines.slurm.plugin", "staging.builtin")
        )
        self._import(MODULES, f"{libraries}, {own}")
        with stand.job(SALLOC):
            pass
        stand.create(stand.sleep, _CREATE).remove()
        stand.create(stand.sleep, _OWN, [scrun[0], *_NOTHING, *scrun[1:]]).remove()
        with stand.fresh() as command:
            stand.create(stand.sleep, _FIRST, command).remove()

    def _import(self, what: str, modules: str) -> None:
        code = f"import sys; sys.path.insert(0, {self._packages!r}); import {modules}; "
        code += "import os; os._exit(0)"
        self._stand.take(what, self._interpreter, "-I", "-S", "-c", code)

    def table(self) -> str:
        """Return a table: sums of parts, and what they are of that which the goals are for."""
        median = self._stand.times.median
        beside, beside_first = median(BARE, SALLOC), median(TRIO, SALLOC)
        sums = [
            ("`create`: its command and `salloc`", median(COMMAND, SALLOC), beside),
            ("… and what scrun does for no job at all", median(_OWN, SALLOC), beside),
            ("… all of it", median(_CREATE), beside),
            (
                "the first: both interpreters, the libraries, `salloc`",
                median(COMMAND, LIBRARIES, SALLOC),
                beside_first,
            ),
            ("… with scrun's own modules", median(COMMAND, MODULES, SALLOC), beside_first),
            ("… all of it", median(_FIRST), beside_first),
        ]
        rows = [
            [what, f"{seconds * 1e3:.1f}", f"{seconds / other:.2f}"]
            for what, seconds, other in sums
        ]
        return table(["what", "ms", "of what the goal is for"], rows)
