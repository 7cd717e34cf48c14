"""What is needed to do something with a container while it runs."""

from typing import NamedTuple

from scrun.oci.config import Bundle
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.core.nurseries import Tasks
from scrun.supervisor.log.journal import Journal


class RunningContainer(NamedTuple):
    """A running container, seen by those who do something with it.

    Attributes:
        job: Its job.
        bundle: The submitted bundle.
        place: The staged one.
        journal: Its log.
        beside: What ends with the container.
    """

    job: Job
    bundle: Bundle
    place: Staged
    journal: Journal
    beside: Tasks
