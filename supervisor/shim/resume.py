"""Goes on for the successor of a supervisor that has died (see the package's docstring)."""

from .frames import CALL, BrokenFrame
from .json_text import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .containers import Containers


def resume_call(kind: int, payload: bytes) -> "dict[str, Any]":
    """Return the call `resume`.

    Args:
        kind: The kind of a frame that came over srun.
        payload: Its payload.

    Raises:
        BrokenFrame: It is something else.
    """
    call: dict[str, Any] = loads(payload.decode()) if kind == CALL else {}
    if call.get("verb") != "resume":
        raise BrokenFrame(f"a frame of kind {kind} came over srun")
    return call


def forget_others(containers: "Containers", known: "Sequence[str]") -> None:
    """Delete the containers and execs that the successor does not know."""
    for target in list(containers.targets.values()):
        if target.id not in known and not target.doomed:
            containers.delete({"id": target.id}, _ignore)


def state_of(containers: "Containers") -> "dict[str, dict[str, Any]]":
    """Return what became of the containers and execs, by their ids."""
    return {
        target.id: {"started": target.started, "ended": target.ended}
        for target in containers.targets.values()
    }


def _ignore(_reply: "dict[str, Any]") -> None:
    """Answer nobody."""
