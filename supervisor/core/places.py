"""Where the supervisor's own files are, for programs that are run by their path."""

import os

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def program(folder: str, name: str) -> str:
    """Return the path of a program, such as `reapers`, `runtime`."""
    return f"{_FOLDER}/{folder}/{name}.py"
