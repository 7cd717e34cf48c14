"""Variables of scrun's: which there are, and which look like misspelled ones."""

from collections.abc import Iterable

from scrun.core.errors import closest
from scrun.settings.file.load import OF_SETTINGS
from scrun.settings.slurm.outputs import NAMES
from scrun.settings.slurm.requests import TABLE

_OURS = "SCRUN_"
_OTHERS = frozenset(("SCRUN_CONFIG", "SCRUN_WATCHDOG"))
_FAMILIES = ("SCRUN_OPTION_", "SCRUN_ANNOTATION_")


def misspelled(names: Iterable[str]) -> list[tuple[str, str]]:
    """Find names that nobody reads and that are much like one that scrun reads, or an option.

    Other names that begin so may be anybody's.

    `names` are those of a caller's environment.

    Returns:
        Each with the one that was meant.
    """
    found = []
    read = {*TABLE, *OF_SETTINGS, *_OTHERS, *NAMES}
    for name in names:
        if name.startswith(_OURS) and not name.startswith(_FAMILIES) and name not in read:
            known = _meant()
            if meant := closest(name.removeprefix(_OURS), sorted(known)):
                found.append((name, known[meant]))
    return found


def _meant() -> dict[str, str]:
    """Return the variables by what may be written for them, without SCRUN_."""
    options = {
        request.option.removeprefix("--").upper().replace("-", "_"): request.variable
        for request in reversed([*TABLE.values()])
    }
    own = (name for name in (*TABLE, *OF_SETTINGS, *_OTHERS) if name.startswith(_OURS))
    return {**options, **{name.removeprefix(_OURS): name for name in own}}
