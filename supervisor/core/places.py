"""Paths of the supervisor's programs."""

from scrun.core.paths import packages


def program(folder: str, name: str) -> str:
    """Return the path of a program, such as `reapers/runtime.py`."""
    return f"{packages()}/scrun/supervisor/{folder}/{name}.py"
