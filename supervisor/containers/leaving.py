"""Which containers a successor can take over, while we still serve them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from scrun.model.states import taken
from scrun.supervisor.containers.container import Container


class Leaving:
    """See the module."""

    def __init__(self, known: Mapping[str, Container], changed: Callable[[], None]) -> None:
        """Begin.

        Args:
            known: The containers, by id.
            changed: Called when a program of `exec` has ended.
        """
        self._known = known
        self._changed = changed
        self._programs: Counter[str] = Counter()

    def staying(self, *, with_programs: bool = True) -> dict[str, str]:
        """Return those that a successor cannot take over now, and why.

        Args:
            with_programs: Whether programs of `exec`, which would end, count.
        """
        found = {}
        for name, container in self._known.items():
            runs = "a program of `exec` runs" if with_programs and self._programs[name] else ""
            if why := container.why_it_stays or runs:
                found[name] = why
        return found

    def end_unadoptable(self) -> None:
        """End those that no successor could ever take over."""
        for container in self._known.values():
            if container.is_ours_alone:
                container.end(taken("scrun-failure", "the supervisor was told to restart"))

    @contextmanager
    def program(self, container: str) -> Iterator[None]:
        """Count a program of `exec` while it runs."""
        self._programs[container] += 1
        try:
            yield
        finally:
            self._programs[container] -= 1
            self._changed()
