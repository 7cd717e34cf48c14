"""The plugin engine/none: containers go through their whole lifecycle, and nothing runs.

It has all parts of an engine, and none does anything: to try staging without a runtime, to measure
scrun itself, and to start writing an engine.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from scrun.core.errors import EngineError
from scrun.model.states import Ending, exited
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import (
    Engine,
    Job,
    JobRequest,
    NodeAnswer,
    Program,
    Session,
    Step,
)
from scrun.supervisor.contracts.target import Target

plugin_type = "engine/none"
plugin_name = "Nothing runs"
plugin_version = "1.0.0"


class NoEngine(Engine):
    """An engine without nodes."""

    name = "none"

    def tidy(self) -> None:
        """Do nothing: the engine keeps no files."""

    async def target(self, child_env: ChildEnv) -> Target:
        """Describe a target that needs only the changes for the user's rights."""
        uid = os.geteuid()
        return Target(elsewhere=False, uid=uid, gid=os.getegid(), rootless=uid != 0, host_only=())

    @asynccontextmanager
    async def allocate(self, request: JobRequest) -> AsyncIterator[Job]:
        """Return a job that does nothing."""
        request.on_job_id("0", False)
        request.journal.write("info", "engine none: nothing will run")
        yield _NoJob()

    async def release(self, job_id: str, child_env: ChildEnv, record: str) -> None:
        """Do nothing: no job is held."""


class _NoJob(Job):
    """A job that does nothing."""

    id = "0"
    environment: Mapping[str, str] = {}

    async def run(self, step: Step) -> Ending:
        """Report that the container runs, and end at once."""
        step.running()
        return exited(0)

    async def signal(self, number: int) -> None:
        """Do nothing: there is no process."""

    def resized(self) -> None:
        """Do nothing: there is no terminal."""

    async def session(self, program: Program) -> Session:
        """Refuse."""
        raise EngineError("engine none: there is no container to run a program in")

    async def pause(self, *, resume: bool) -> None:
        """Do nothing: there is no process."""

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        """Return no answers: there are no nodes."""
        return []

    async def update(self, resources: str, wanted: Sequence[str], limit: str) -> None:
        """Do nothing: there are no limits."""

    async def command(
        self, script: str, output: int, variables: Mapping[str, str] | None = None
    ) -> int:
        """Refuse."""
        raise EngineError("engine none: there is no node to run a command on")


def configure(settings: object, environment: Mapping[str, str]) -> None:
    """Return no configuration: the engine has no settings."""


def engine(root: str, configuration: None) -> NoEngine:
    """See `supervisor.contracts.plugin.EnginePlugin`."""
    return NoEngine()
