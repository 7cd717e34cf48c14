"""The interface of stagers, which prepare bundles for the nodes of a job and clean up afterwards.

The supervisor uses stagers only through these protocols. They stage in, and stage out when the
block is left, whatever happened.
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


class Submission(msgspec.Struct, frozen=True):
    """A bundle to be staged.

    Attributes:
        bundle: The bundle; must not be changed.
        engine: Where it will run.
        skip_stage_out: Set when the user does not want to wait for the stage out.
        staged_out: To be called when a script's stage out has ended, successfully or not: until
            then, whoever finds the record repeats it.
        removed: To be called when the staged bundle is gone; else whether it is is looked up.
    """

    bundle: Bundle
    settings: Settings
    engine: Engine
    request: JobRequest
    skip_stage_out: trio.Event
    staged_out: Callable[[], None] = lambda: None
    removed: Callable[[], None] = lambda: None


class Served(msgspec.Struct, frozen=True):
    """A container that this supervisor has adopted, and that has ended.

    Attributes:
        job: Its job, which is still there.
        request: The request for that.
        staged: What the dead supervisor has staged.
    """

    job: Job
    request: JobRequest
    staged: Staged
    skip_stage_out: trio.Event


class Leftover(msgspec.Struct, frozen=True):
    """A container whose supervisor died.

    Attributes:
        record: Its record. `record.staged` is the directory of its staged bundle.
        directory: The record's directory, with all that a stager has put there.
        settings: The settings, as read by the supervisor that cleans up.
        served: The other known facts, if the container was adopted.
    """

    record: Record
    directory: str
    settings: Settings
    child_env: ChildEnv
    served: Served | None = None


class Stager(Protocol):
    """Prepares one bundle for the nodes of a job."""

    def staged(
        self, job: Job, environment: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Staged]:
        """Provide a bundle that the job's nodes can run while the block runs.

        Args:
            environment: The variables for scripts: the job's, and SCRUN_*.

        Raises:
            StagingError: Staging in or out failed, or took too long.
        """
