"""Goes on for the successor of a supervisor that has died (see the package's docstring)."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .containers import NodeContainers


def forget_others(containers: "NodeContainers", known: "Sequence[str]") -> None:
    """Delete the containers and execs that the successor does not know."""
    for target in list(containers.targets.values()):
        if target.id not in known and not target.doomed:
            containers.delete({"id": target.id}, _ignore)


def state_of(containers: "NodeContainers") -> "dict[str, dict[str, Any]]":
    """Return what became of the containers and execs, by their ids."""
    return {
        target.id: {"started": target.started, "ended": target.ended}
        for target in containers.targets.values()
    }


def _ignore(_reply: "dict[str, Any]") -> None:
    """Answer nobody."""
