"""The names of files for input and output as srun(1) has them, "IO Redirection". Pure."""

import re
from collections.abc import Mapping

_PART = re.compile(r"%(\d*)(.?)", re.DOTALL)
_KNOWN = frozenset("%AabJjNnstux")
OF_A_TASK = frozenset("Nnt")
"""The letters that mean something else for each task."""


def letters(pattern: str) -> frozenset[str]:
    """Return the letters behind percent signs that mean something; none with a backslash."""
    if "\\" in pattern:
        return frozenset()
    return frozenset(part[2] for part in _PART.finditer(pattern)) & _KNOWN - {"%"}


def file_name(pattern: str, facts: Mapping[str, str]) -> str:
    """Return the name of a file, by facts of its `letters`; numbers may have a width."""
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def value(part: "re.Match[str]") -> str:
        width, letter = min(int(part[1] or 0), 10), part[2]
        if letter == "%":
            return "%"
        return facts[letter].rjust(width, "0") if letter in _KNOWN else part[0]

    return _PART.sub(value, pattern)


def facts_of(
    environment: Mapping[str, str], job: str, name: str, node: str, user: str
) -> dict[str, str]:
    """Return the values for a container of one task; `environment` tells its job's array."""
    array = environment.get("SLURM_ARRAY_JOB_ID")
    index = environment.get("SLURM_ARRAY_TASK_ID") if array else None
    within = {"A": array or job, "a": index or "4294967294"}  # as srun has it outside of an array
    within["b"] = str(int(within["a"]) % 10) if within["a"].isdigit() else "0"
    own = {"j": job, "J": f"{job}.0", "s": "0", "N": node, "n": "0", "t": "0", "x": name}
    return {**within, **own, "u": user}
