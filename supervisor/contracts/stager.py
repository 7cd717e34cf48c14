"""What a stager is: who makes a bundle ready for the nodes of a job, and cleans up after it.

The supervisor knows stagers by these protocols only. Stage in, and when the block is left stage
out, whatever happened.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
import trio

from scrun.model.record import Record
from scrun.oci.config import Bundle
from scrun.settings.file.load import Settings
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Engine, Job, JobRequest
from scrun.supervisor.contracts.staged import Staged


def _nothing() -> None:
    """Tell nobody."""


class Submission(msgspec.Struct, frozen=True):
    """A bundle that is to be staged.

    Attributes:
        bundle: It; never to be changed.
        settings: The container's.
        engine: Where it will run.
        request: What the job is asked for with.
        hurry: Set when nobody wants to wait for the end of a stage out.
        staged_out: To be called when a script's stage out has come to its end, however that was:
            what has not is done again by whoever finds the record.
    """

    bundle: Bundle
    settings: Settings
    engine: Engine
    request: JobRequest
    skip_stage_out: trio.Event
    staged_out: Callable[[], None] = _nothing


class Leftover(msgspec.Struct, frozen=True):
    """A container whose supervisor died.

    Attributes:
        record: What is known of it. `record.staged` is the directory of its staged bundle.
        directory: The record's directory: what a stager has put there is there still.
        settings: As the supervisor that cleans up reads them.
        child_env: The surroundings for children.
    """

    record: Record
    directory: str
    settings: Settings
    child_env: ChildEnv


class Stager(Protocol):
    """Makes one bundle ready for the nodes of a job."""

    def staged(
        self, job: Job, environment: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Staged]:
        """Make a bundle that the job's nodes can run, for as long as the block lasts.

        Args:
            job: The job.
            environment: The variables for scripts: the job's, and SCRUN_*.

        Raises:
            StagingError: It cannot be done, took too long, or could not be undone.
        """
        ...
