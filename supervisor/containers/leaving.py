"""Which containers a successor can take over, while we still serve them."""

from collections.abc import Mapping

from scrun.model.states import taken
from scrun.supervisor.containers.container import Container

TOLD_TO_STOP = taken("scrun-failure", "the supervisor was told to stop")


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

    @property
    def is_kept(self) -> bool:
        """Whether a successor finds any that lives."""
        return any(one.alive and not one.why_it_stays for one in self._known.values())

    async def end_the_others(self) -> None:
        """End those that no successor finds; returns when they, and what ends, are cleaned up."""
        others = [one for one in self._known.values() if one.why_it_stays or one.ending]
        for container in others:
            if not container.ending:
                container.end(TOLD_TO_STOP)
        for container in others:
            await container.gone.wait()

    def end_unadoptable(self) -> None:
        """End those that no successor could ever take over."""
        for container in self._known.values():
            if container.is_ours_alone:
                container.end(taken("scrun-failure", "the supervisor was told to restart"))
