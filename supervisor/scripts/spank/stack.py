"""The plugin stack of a site without scripts, the base class of the other."""

from scrun.model.states import Ending
from scrun.supervisor.contracts.engine import Job, JobRequest, Step


class Stack:
    """The plugin stack of a site without scripts: it calls nothing.

    Attributes:
        has_scripts: Whether scripts may be called around the container's task.
    """

    has_scripts = False

    def __init__(self, request: JobRequest) -> None:
        self.request = request

    async def allocated(self, job: Job) -> None:
        """Call the functions that come after the allocation.

        Raises:
            SpankError: A required script failed.
        """

    async def run(self, job: Job, step: Step) -> Ending:
        """Run the container in its job, and the functions around it.

        Raises:
            SpankError: A required script failed, and the container did not run.
        """
        return await job.run(step)
