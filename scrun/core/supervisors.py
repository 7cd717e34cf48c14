"""The names of supervisors: `@GROUP[-KEY]-USERNS-MNTNS-PIDNS-VERSION[-PID]`.

One that gives its name to a successor, or finds it taken, puts its pid at the end.
"""

import re

from scrun.core.version import VERSION

_NAME = re.compile(r"(@.+-\d+-\d+-\d+)-(\d[^-]*)(?<!\.lock)(?:-(\d+))?")


def parts(name: str) -> "tuple[str, str, bool]":
    """Split a supervisor's name.

    Returns:
        What it has in common with its successors; its version; and whether another one may have
            its name. Three times nothing for any other name.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return "", "", False
    return found[1], found[2], found[3] is not None


def successor_of(name: str) -> str:
    """Return the name that a supervisor of this version has in place of another one."""
    base, _, _ = parts(name)
    return f"{base}-{VERSION}" if base else name


def is_newer(version: str, than: str = VERSION) -> bool:
    """Tell whether a version is newer than another: `0.10.0` than `0.9.1` or `0.10.0.dev1`."""
    one, other = _numbers(version), _numbers(than)
    length = max(len(one), len(other))
    return one + [0] * (length - len(one)) > other + [0] * (length - len(other))


def _numbers(version: str) -> "list[int]":
    """Return its numbers; a word such as `dev1` or `rc1` is before its absence."""
    return [int(part) if part.isdigit() else -1 for part in version.split(".")]
