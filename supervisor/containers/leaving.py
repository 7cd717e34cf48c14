"""Which containers a successor can take over, while we still serve them."""

from collections.abc import Mapping

from scrun.model.states import taken
from scrun.supervisor.containers.container import Container


class Leaving:
    """See the module."""

    def __init__(self, known: Mapping[str, Container]) -> None:
        """Begin.

        Args:
            known: The containers, by id.
        """
        self._known = known

    def staying(self, *, with_programs: bool = True) -> dict[str, str]:
        """Return those that a successor cannot take over now, and why.

        Args:
            with_programs: Whether programs of `exec` count that would end.
        """
        found = {}
        for name, container in self._known.items():
            if why := container.why_it_stays:
                found[name] = why
            elif with_programs and container.programs.would_end:
                found[name] = "a program of `exec` runs that would end"
        return found

    def end_unadoptable(self) -> None:
        """End those that no successor could ever take over."""
        for container in self._known.values():
            if container.is_ours_alone:
                container.end(taken("scrun-failure", "the supervisor was told to restart"))
