"""The plugin stack of a container at a site without scripts, and what all stacks have."""

from scrun.model.states import Ending
from scrun.supervisor.contracts.engine import Job, JobRequest, Step


class Stack:
    """That of a site without scripts: nothing is called.

    Attributes:
        request: What the job is to be asked for with.
        has_scripts: Whether something is called around the container's task.
    """

    has_scripts = False

    def __init__(self, request: JobRequest) -> None:
        self.request = request

    async def allocated(self, job: Job) -> None:
        """Call what comes after the allocation.

        Raises:
            SpankError: A required script has failed.
        """

    async def run(self, job: Job, step: Step) -> Ending:
        """Run the container in its job, with what comes around that.

        Raises:
            SpankError: A required script has failed; the container has not run.
        """
        return await job.run(step)
