"""Paths of the supervisor's programs."""

import os

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def program(folder: str, name: str) -> str:
    """Return the path of a program, such as `reapers/runtime.py`."""
    return f"{_FOLDER}/{folder}/{name}.py"
