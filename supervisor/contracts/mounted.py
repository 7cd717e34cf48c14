"""What a stager remembers of the nodes of a job."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class RemembersMounts(Protocol):
    """A job whose node may serve several containers; optional."""

    @property
    def mounted(self) -> set[Any]:
        """Of what kinds that node has mounted overlays: the stager's notes, in its own words."""
        ...
