"""The interface of jobs whose containers share namespaces; optional."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class SharesNamespaces(Protocol):
    """A job whose container can enter namespaces of others in it."""

    def entered(self) -> AbstractContextManager[None]:
        """Let the others know of the container while the block runs."""
        ...

    async def neighbours(self) -> Mapping[str, Mapping[str, Any]]:
        """Wait until the containers of `JobRequest.joins` are created or have ended.

        Returns:
            The config.json of each that the nodes have, by its directory there.
        """
        ...
