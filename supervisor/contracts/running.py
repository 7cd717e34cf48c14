"""What operations on a running container need."""

from typing import NamedTuple

from scrun.oci.config import Bundle
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.log.journal import Journal


class RunningContainer(NamedTuple):
    """A running container.

    Attributes:
        job: Its job.
        bundle: The submitted bundle.
        staged: The staged bundle.
        journal: Its log.
    """

    job: Job
    bundle: Bundle
    staged: Staged
    journal: Journal
