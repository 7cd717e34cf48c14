"""What a job on other machines can do for a stager."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class OnANode(Protocol):
    """A job on other machines; optional."""

    @property
    def is_single(self) -> bool:
        """Whether its container is one task on one node."""
        ...

    async def ask(self, script: str) -> str:
        """Run a shell script on all nodes of the job, before the container runs.

        Returns:
            Its standard output and error.

        Raises:
            EngineError: It could not be run.
        """
        ...
