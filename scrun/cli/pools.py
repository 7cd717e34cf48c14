"""What a command line says of a pool; the supervisor reads it, too."""

from scrun.cli.parse import Parsed
from scrun.core.errors import UsageError

AUTO = "auto"
"""The pool that starts by itself."""

_MOST = 1024


def nodes_of(parsed: Parsed) -> int:
    text = parsed.text("nodes") or "1"
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:5]) <= _MOST):
        raise UsageError(f"--nodes {text}: a number from 1 to {_MOST} expected")
    return int(text)
