"""What `scrun cp` copies, from its two operands: read by the command and by the supervisor."""

from typing import NamedTuple

from scrun.core.errors import UsageError
from scrun.core.paths import python_code
from scrun.oci.ids import check_id

OUT, INTO = "out", "into"
"""From the container, and into it."""

SAID, CUT_OFF = 1, 3
"""The copier's exit statuses: it has said why it failed; or the other side has, which says why."""

_COPIER = "from scrun.supervisor.shim.copying import serve_descriptors; serve_descriptors()"

ARCHIVE = "-"
"""Instead of a path of this machine: an archive, on standard input or output."""


class Copied(NamedTuple):
    """Files that are copied; `container` may be an id's beginning, `local` may be `ARCHIVE`."""

    container: str
    path: str
    local: str
    is_out: bool

    @property
    def direction(self) -> str:
        return OUT if self.is_out else INTO

    def operands(self, container: str) -> list[str]:
        """Return operands that stand for the container's side of it."""
        inside = f"{container}:{self.path}"
        return [inside, ARCHIVE] if self.is_out else [ARCHIVE, inside]


def copier(direction: str, path: str, pid: int = 0) -> list[str]:
    """Return the command that packs or unpacks a path, of a container if there is a `pid`."""
    return python_code(_COPIER, str(pid), direction, path)


def read_copied(operands: list[str]) -> Copied:
    """Parse a source and a destination, exactly one of them in a container."""
    source, destination = map(_split, operands)
    if (source[0] is None) is (destination[0] is None):
        which = "neither is" if source[0] is None else "both are"
        raise UsageError(
            f"cp {' '.join(operands)}: {which} in a container: write CONTAINER:PATH for one of "
            "them, and ./NAME for a file here whose name has a colon"
        )
    is_out = source[0] is not None
    container, path = source if is_out else destination
    _, local = destination if is_out else source
    if not path or not local:
        raise UsageError(f"cp {' '.join(operands)}: a path is empty")
    return Copied(check_id(container or ""), "/" + path.lstrip("/"), local, is_out)


def _split(operand: str) -> tuple[str | None, str]:
    """Split an operand into a container, if it names one, and a path."""
    container, colon, path = operand.partition(":")
    return (container, path) if colon and "/" not in container else (None, operand)
