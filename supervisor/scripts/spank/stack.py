"""The plugin stack of a site without scripts, the base class of the other."""

from scrun.model.states import Ending
from scrun.supervisor.contracts.engine import Job, JobRequest, Step


class Stack:
    """The plugin stack of a site without scripts: it calls nothing."""

    has_scripts = False

    def __init__(self, request: JobRequest) -> None:
        self.request = request

    async def allocated(self, job: Job) -> None:
        """Call the functions that come after the allocation."""

    async def run(self, job: Job, step: Step) -> Ending:
        """Run the container and the functions around it; a required one may prevent it."""
        return await job.run(step)
