"""What a job on other machines can do for a stager."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class OnNodes(Protocol):
    """A job on other machines; optional."""

    @property
    def separate_tasks(self) -> int:
        """How many tasks can have mounts of their own; 0: all have the same, on several nodes."""
        ...

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        """Run a shell script for each of these tasks on its node, before the container runs.

        Args:
            script: Returns the script for a task. If all have the same mounts, the one for task 0
                is run on each node.

        Returns:
            Their standard output and error.

        Raises:
            EngineError: One could not be run.
        """
        ...
